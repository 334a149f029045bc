// How a layer of an exported model takes a run's lower precision: as a whole, by the calls in it.
#pragma once

#include <span>

#include "models/exported/flat_program.h"
#include "runtime/layers/layer.h"

namespace millrace {

/// Lower where all its calls are matrix products, convolutions, attention, or pass on what those make;
/// Promote where all pass on. Float32 else, and where `floating_constants`: buffers or constants that would
/// meet tensors of another type.
CastPolicy cast_policy_of(std::span<const FlatCall> calls, bool floating_constants);

}  // namespace millrace
