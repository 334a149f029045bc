#include "runtime/layers/group_normalisation.h"

#include <ATen/ops/native_group_norm.h>
#include <ATen/ops/native_group_norm_backward.h>

namespace millrace {

at::Tensor normalise_groups(const at::Tensor& x, std::span<const at::Tensor> p, std::int64_t groups,
                            double epsilon, Saved* saved) {
  const at::Tensor dense = x.contiguous();
  const std::int64_t samples = x.size(0), channels = x.size(1);
  auto [output, mean, inverse] =
      at::native_group_norm(dense, p.empty() ? at::Tensor() : p[0], p.empty() ? at::Tensor() : p[1], samples,
                            channels, x.numel() / (samples * channels), groups, epsilon);
  if (saved) saved->tensors = {dense, std::move(mean), std::move(inverse)};
  return output;
}

at::Tensor group_gradients(const at::Tensor& grad, std::span<const at::Tensor> p, std::int64_t groups,
                           Saved& saved, bool needs_input) {
  const at::Tensor& x = saved.tensors[0];
  const std::int64_t samples = x.size(0), channels = x.size(1);
  auto [input, weight, bias] = at::native_group_norm_backward(
      grad.contiguous(), x, saved.tensors[1], saved.tensors[2], p.empty() ? at::Tensor() : p[0], samples,
      channels, x.numel() / (samples * channels), groups, {needs_input, !p.empty(), !p.empty()});
  saved.tensors = {std::move(weight), std::move(bias)};
  return input;
}

}  // namespace millrace
