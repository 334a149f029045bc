// Decides from its calls how a layer of an exported model takes a run's lower precision.
#pragma once

#include <span>

#include "models/exported/flat_program.h"
#include "runtime/layers/layer.h"

namespace millrace {

/// Returns Promote if all calls pass on the type that they get. Returns Lower if the others are all matrix
/// products, convolutions or attention. Else it returns Float32. It also does so with `floating_constants`:
/// the layer has buffers or constants that would meet tensors of another type.
CastPolicy cast_policy_of(std::span<const FlatCall> calls, bool floating_constants);

}  // namespace millrace
