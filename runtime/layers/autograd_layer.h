// The way in for a layer that only has a forward: LibTorch's autograd supplies its backward.
#pragma once

#include "runtime/layers/layer.h"

namespace millrace {

/// `layer`'s forward recorded by LibTorch's autograd, whose graph then gives all gradients at once; the ones
/// of parameters wait from backward_input to backward_weight. Same name, parameters and shapes; `layer`'s own
/// backward is never called. Slower than a layer's own functions and holds what the graph holds: a fallback,
/// and the oracle for them (`--autograd`: bitwise the same weights).
LayerPtr through_autograd(LayerPtr layer);

}  // namespace millrace
