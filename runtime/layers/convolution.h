// One convolution, transposed or not, and its gradients: what the layers of one job and of many call.
#pragma once

#include <array>
#include <cstdint>
#include <tuple>

#include <ATen/core/Tensor.h>

#include "runtime/layers/transposed_convolution.h"

namespace millrace {

/// All but the tensors and the groups, of which many jobs have more.
struct ConvolutionCall {
  explicit ConvolutionCall(const ConvOptions& options);
  explicit ConvolutionCall(const ConvTranspose2dOptions& options);

  std::int64_t stride;
  Extent2 padding;
  std::int64_t output_padding = 0, dilation = 1;
  PaddingMode mode = PaddingMode::Zeros;
  bool transposed, bias;

  /// input [N, C, (H,) W] with the edges that `mode` says, and the gradient of what was padded so. Both give
  /// their argument where it says zeros, which forward() adds itself.
  at::Tensor padded(const at::Tensor& input) const;
  at::Tensor unpadded(const at::Tensor& grad) const;
  /// input as padded() made it; weight as torch.nn has it; bias [O], read if `bias`.
  at::Tensor forward(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias_values,
                     std::int64_t groups) const;
  /// Of input, weight and bias, where `mask` asks for them: undefined elsewhere.
  std::tuple<at::Tensor, at::Tensor, at::Tensor> gradients(const at::Tensor& grad, const at::Tensor& input,
                                                           const at::Tensor& weight, std::int64_t groups,
                                                           std::array<bool, 3> mask) const;
};

}  // namespace millrace
