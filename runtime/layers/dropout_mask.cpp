#include "runtime/layers/dropout_mask.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>

#include "runtime/kernels/philox.h"

namespace millrace {
namespace {

/// Draws a mask with the shape and device of `like`. Each seed of `seeds` draws an equal number of rows of
/// dimension 0.
at::Tensor drawn(const at::Tensor& like, double p, std::span<const std::uint64_t> seeds, MasksFrom from) {
  const bool copied = from == MasksFrom::Host && !like.device().is_cpu();
  // Page-locked memory makes the copy asynchronous.
  const at::Tensor mask = at::empty(like.sizes(), at::TensorOptions(at::kFloat)
                                                      .device(copied ? at::Device(at::kCPU) : like.device())
                                                      .pinned_memory(copied));
  const std::int64_t rows = seeds.size() == 1 ? 0 : mask.size(0) / static_cast<std::int64_t>(seeds.size());
  for (std::size_t i = 0; i < seeds.size(); ++i) {
    at::Tensor own = seeds.size() == 1 ? mask : mask.narrow(0, static_cast<std::int64_t>(i) * rows, rows);
    if (mask.is_cpu())
      draw_mask(own.mutable_data_ptr<float>(), own.numel(), p, static_cast<float>(1 / (1 - p)), seeds[i]);
    else
      own.bernoulli_(1 - p, seeded_generator(mask.device(), seeds[i])).div_(1 - p);
  }
  return mask.to(like.device(), like.scalar_type(), /*non_blocking=*/true);
}

}  // namespace

at::Generator seeded_generator(at::Device device, std::uint64_t seed) {
  at::Generator generator =
      at::globalContext().getAcceleratorHooksInterface(device.type()).getNewGenerator(device.index());
  generator.set_current_seed(seed);
  return generator;
}

at::Tensor dropout_mask(const at::Tensor& like, double p, std::uint64_t seed, MasksFrom from) {
  return drawn(like, p, std::span(&seed, 1), from);
}

at::Tensor dropout_mask(const at::Tensor& like, double p, const CallContext& context) {
  if (context.job_seeds.empty()) return dropout_mask(like, p, context.random_seed, context.masks);
  return drawn(like, p, context.job_seeds, context.masks);
}

}  // namespace millrace
