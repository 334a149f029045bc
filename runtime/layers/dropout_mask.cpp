#include "runtime/layers/dropout_mask.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

namespace millrace {

at::Tensor dropout_mask(const at::Tensor& like, double p, std::uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  // Drawn on the CPU whatever the device: the same mask everywhere. Page-locked, the copy stalls nobody.
  const at::Device device = like.device();
  const auto options = at::TensorOptions(at::kFloat).pinned_memory(!device.is_cpu());
  return at::empty(like.sizes(), options)
      .bernoulli_(1 - p, generator)
      .div_(1 - p)
      .to(device, like.scalar_type(), /*non_blocking=*/true);
}

}  // namespace millrace
