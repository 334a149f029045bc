#include "runtime/layers/convolution.h"

#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>

namespace millrace {

ConvolutionCall::ConvolutionCall(const ConvOptions& options)
    : stride(options.stride), padding(options.padding), transposed(false), bias(options.bias) {}

ConvolutionCall::ConvolutionCall(const ConvTranspose2dOptions& options)
    : stride(options.stride),
      padding(options.padding),
      output_padding(options.output_padding),
      transposed(true),
      bias(options.bias) {}

at::Tensor ConvolutionCall::forward(const at::Tensor& input, const at::Tensor& weight,
                                    const at::Tensor& bias_values, std::int64_t groups) const {
  const std::int64_t strides[] = {stride, stride}, paddings[] = {padding.height, padding.width},
                     one[] = {1, 1}, output[] = {output_padding, output_padding};
  return at::convolution(input, weight, bias ? bias_values : at::Tensor(), strides, paddings, one, transposed,
                         output, groups);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> ConvolutionCall::gradients(const at::Tensor& grad,
                                                                          const at::Tensor& input,
                                                                          const at::Tensor& weight,
                                                                          std::int64_t groups,
                                                                          std::array<bool, 3> mask) const {
  const std::int64_t bias_size[] = {grad.size(1)}, strides[] = {stride, stride},
                     paddings[] = {padding.height, padding.width}, one[] = {1, 1},
                     output[] = {output_padding, output_padding};
  return at::convolution_backward(grad, input, weight,
                                  bias ? at::OptionalIntArrayRef(bias_size) : at::OptionalIntArrayRef(),
                                  strides, paddings, one, transposed, output, groups, mask);
}

}  // namespace millrace
