// Warns of parameters that do not train.
#pragma once

#include "runtime/train/lane.h"

namespace millrace {

/// Logs the parameters of the stage whose gradients are zero in all elements, and the layers from which no
/// path leads to the loss: neither would be seen in the loss. Comes before the first update of each executor.
/// Completes the gradients.
void warn_of_zero_gradients(const HeldStage& held);

}  // namespace millrace
