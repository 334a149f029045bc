// Functions for layers whose backward is left to LibTorch's autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace millrace {

/// Returns `input` as a leaf of a graph. It requires a gradient unless it holds integers.
at::Tensor leaf_of(const at::Tensor& input);

/// Returns the gradients of `leaves`, given the gradient of `output`. They are undefined for leaves that
/// require none or that `output` does not depend on. The graph is consumed.
std::vector<at::Tensor> gradients_of(const at::Tensor& output, const at::Tensor& grad,
                                     const std::vector<at::Tensor>& leaves);

}  // namespace millrace
