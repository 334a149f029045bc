// Functions of layers that leave their backward to LibTorch's autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace millrace {

/// Returns `input` as the beginning of a graph. It wants a gradient unless it holds integers.
at::Tensor leaf_of(const at::Tensor& input);

/// Returns the gradients of `leaves`, given that of `output`. They are undefined for leaves that want none or
/// that `output` does not depend on. The graph is used up.
std::vector<at::Tensor> gradients_of(const at::Tensor& output, const at::Tensor& grad,
                                     const std::vector<at::Tensor>& leaves);

}  // namespace millrace
