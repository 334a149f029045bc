#include "runtime/layers/convolution.h"

#include <algorithm>
#include <vector>

#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

namespace millrace {
namespace {

/// Returns the source indices, among `size` elements, of the elements from -padding to size + padding.
at::Tensor places(PaddingMode mode, std::int64_t size, std::int64_t padding, const at::Tensor& like) {
  std::vector<std::int64_t> from;
  for (std::int64_t i = -padding; i < size + padding; ++i) {
    const std::int64_t mirrored = i < 0 ? -i : i < size ? i : 2 * (size - 1) - i;
    from.push_back(mode == PaddingMode::Reflect     ? mirrored
                   : mode == PaddingMode::Replicate ? std::clamp<std::int64_t>(i, 0, size - 1)
                                                    : (i + size) % size);
  }
  return at::tensor(from, at::kLong).to(like.device());
}

/// Returns one number for each dimension after the channels of `x`: width; height and width; or depth, height
/// and width, where the depth's number is the height's.
std::vector<std::int64_t> by_dimension(const at::Tensor& x, const Extent2& of) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(x.dim() - 2), of.height);
  numbers.back() = of.width;
  return numbers;
}

}  // namespace

ConvolutionCall::ConvolutionCall(const ConvOptions& options)
    : stride(options.stride),
      padding(options.padding),
      dilation(options.dilation),
      mode(options.padding_mode),
      transposed(false),
      bias(options.bias) {}

ConvolutionCall::ConvolutionCall(const ConvTransposeOptions& options)
    : stride(options.stride),
      padding(options.padding),
      output_padding(options.output_padding),
      dilation(options.dilation),
      transposed(true),
      bias(options.bias) {}

at::Tensor ConvolutionCall::padded(const at::Tensor& input) const {
  if (mode == PaddingMode::Zeros) return input;
  at::Tensor result = input;
  std::int64_t dimension = 2;
  for (const std::int64_t beyond : by_dimension(input, padding)) {
    if (beyond > 0)
      result = at::index_select(result, dimension, places(mode, result.size(dimension), beyond, result));
    ++dimension;
  }
  return result;
}

at::Tensor ConvolutionCall::unpadded(const at::Tensor& grad) const {
  if (mode == PaddingMode::Zeros) return grad;
  at::Tensor result = grad;
  const std::vector<std::int64_t> paddings = by_dimension(grad, padding);
  for (std::int64_t dimension = grad.dim() - 1; dimension > 1; --dimension) {
    const std::int64_t beyond = paddings[dimension - 2];
    if (beyond == 0) continue;
    std::vector<std::int64_t> shape = result.sizes().vec();
    const std::int64_t size = shape[dimension] -= 2 * beyond;
    at::Tensor of_input = at::zeros(shape, result.options());
    of_input.index_add_(dimension, places(mode, size, beyond, result), result);
    result = of_input;
  }
  return result;
}

at::Tensor ConvolutionCall::forward(const at::Tensor& input, const at::Tensor& weight,
                                    const at::Tensor& bias_values, std::int64_t groups) const {
  return at::convolution(input, weight, bias ? bias_values : at::Tensor(), by_dimension(input, stride),
                         by_dimension(input, mode == PaddingMode::Zeros ? padding : 0),
                         by_dimension(input, dilation), transposed, by_dimension(input, output_padding),
                         groups);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> ConvolutionCall::gradients(const at::Tensor& grad,
                                                                          const at::Tensor& input,
                                                                          const at::Tensor& weight,
                                                                          std::int64_t groups,
                                                                          std::array<bool, 3> mask) const {
  const std::int64_t bias_size[] = {grad.size(1)};
  return at::convolution_backward(
      grad, input, weight, bias ? at::OptionalIntArrayRef(bias_size) : at::OptionalIntArrayRef(),
      by_dimension(input, stride), by_dimension(input, mode == PaddingMode::Zeros ? padding : 0),
      by_dimension(input, dilation), transposed, by_dimension(input, output_padding), groups, mask);
}

}  // namespace millrace
