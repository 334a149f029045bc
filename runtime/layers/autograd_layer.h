// Gives a forward-only layer a backward, through LibTorch's autograd.
#pragma once

#include "runtime/layers/layer.h"

namespace millrace {

/// Returns a layer that runs `layer`'s forward and records it with LibTorch's autograd. Name, parameters and
/// shapes are `layer`'s; its own backward is never called.
/// The graph gives all gradients at once; those of parameters are kept from backward_input to
/// backward_weight. This is slower than a layer's own functions and keeps all tensors of the graph. It is a
/// fallback, and the test oracle for those functions (`--autograd`: bitwise equal weights).
LayerPtr through_autograd(LayerPtr layer);

}  // namespace millrace
