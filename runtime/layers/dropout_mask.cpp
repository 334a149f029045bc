#include "runtime/layers/dropout_mask.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

namespace millrace {

namespace {

void draw_(at::Tensor mask, double p, std::uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  mask.bernoulli_(1 - p, generator).div_(1 - p);
}

/// Drawn on the CPU whatever the device: the same mask everywhere. Page-locked, the copy stalls nobody.
at::Tensor place_for(const at::Tensor& like) {
  return at::empty(like.sizes(), at::TensorOptions(at::kFloat).pinned_memory(!like.device().is_cpu()));
}

at::Tensor moved(const at::Tensor& mask, const at::Tensor& like) {
  return mask.to(like.device(), like.scalar_type(), /*non_blocking=*/true);
}

}  // namespace

at::Tensor dropout_mask(const at::Tensor& like, double p, std::uint64_t seed) {
  const at::Tensor mask = place_for(like);
  draw_(mask, p, seed);
  return moved(mask, like);
}

at::Tensor dropout_mask(const at::Tensor& like, double p, const CallContext& context) {
  if (context.job_seeds.empty()) return dropout_mask(like, p, context.random_seed);
  const at::Tensor mask = place_for(like);
  const std::int64_t rows = mask.size(0) / static_cast<std::int64_t>(context.job_seeds.size());
  for (std::size_t job = 0; job < context.job_seeds.size(); ++job)
    draw_(mask.narrow(0, static_cast<std::int64_t>(job) * rows, rows), p, context.job_seeds[job]);
  return moved(mask, like);
}

}  // namespace millrace
