// A convolution, optionally transposed, and its gradients. The layers of single jobs and of job arrays use
// it.
#pragma once

#include <array>
#include <cstdint>
#include <tuple>

#include <ATen/core/Tensor.h>

#include "runtime/layers/transposed_convolution.h"

namespace millrace {

/// The parameters of a convolution, except tensors and groups; a kernel for many jobs has more groups.
struct ConvolutionCall {
  explicit ConvolutionCall(const ConvOptions& options);
  explicit ConvolutionCall(const ConvTransposeOptions& options);

  std::int64_t stride;
  Extent2 padding;
  std::int64_t output_padding = 0, dilation = 1;
  PaddingMode mode = PaddingMode::Zeros;
  bool transposed, bias;

  /// padded() returns `input` [N, C, (D,) (H,) W] with the edges of `mode`; unpadded() returns the input's
  /// gradient, given that of padded()'s result. Both return their argument if `mode` is Zeros, because
  /// forward() adds zeros itself.
  at::Tensor padded(const at::Tensor& input) const;
  at::Tensor unpadded(const at::Tensor& grad) const;
  /// Computes the convolution. `input` is the result of padded(), and `weight` has torch.nn's layout.
  /// `bias_values` [O] is read only if `bias`.
  at::Tensor forward(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias_values,
                     std::int64_t groups) const;
  /// Returns the gradients of input, weight and bias; those that `mask` does not request are undefined.
  std::tuple<at::Tensor, at::Tensor, at::Tensor> gradients(const at::Tensor& grad, const at::Tensor& input,
                                                           const at::Tensor& weight, std::int64_t groups,
                                                           std::array<bool, 3> mask) const;
};

}  // namespace millrace
