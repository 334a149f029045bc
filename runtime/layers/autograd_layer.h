// Gives a layer that only has a forward a backward, by LibTorch's autograd.
#pragma once

#include "runtime/layers/layer.h"

namespace millrace {

/// Returns a layer that runs `layer`'s forward and records it by LibTorch's autograd. Name, parameters and
/// shapes are `layer`'s; its own backward is never called.
/// The graph gives all gradients at once; those of parameters wait from backward_input to backward_weight.
/// This is slower than a layer's own functions and keeps all that the graph holds. It is a fallback, and the
/// oracle for those functions (`--autograd`: bitwise the same weights).
LayerPtr through_autograd(LayerPtr layer);

}  // namespace millrace
