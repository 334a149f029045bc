// Warns of parameters that do not train.
#pragma once

#include "runtime/train/lane.h"

namespace millrace {

/// Logs the parameters of the stage whose gradients are zero in all elements, and the layers without a path
/// to the loss: neither would show in the loss. Must be called before the first update of each executor.
/// Completes the gradients.
void warn_of_zero_gradients(const HeldStage& held);

}  // namespace millrace
