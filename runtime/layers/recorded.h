// What layers share that leave their backward to LibTorch's autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace millrace {

/// `input` as the beginning of a graph: it wants a gradient unless it holds integers.
at::Tensor leaf_of(const at::Tensor& input);

/// Gradients of `leaves`, given that of `output`; undefined for those that want none or that `output` does
/// not depend on. The graph is used up.
std::vector<at::Tensor> gradients_of(const at::Tensor& output, const at::Tensor& grad,
                                     const std::vector<at::Tensor>& leaves);

}  // namespace millrace
