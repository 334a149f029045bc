// Draws the dropout masks of all layers.
#pragma once

#include <cstdint>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "runtime/layers/layer.h"

namespace millrace {

/// Returns a generator of the accelerator's own kind that starts at `seed`. It is counter-based (Philox). Its
/// numbers depend only on the seed and on how many are drawn from it.
at::Generator seeded_generator(at::Device device, std::uint64_t seed);

/// Returns a mask with the shape, dtype and device of `like`: each element is 0 with probability `p` < 1,
/// else 1 / (1 - p). It depends on the seed alone; if drawn on a device other than the CPU, also on the kind
/// of device.
at::Tensor dropout_mask(const at::Tensor& like, double p, std::uint64_t seed,
                        MasksFrom from = MasksFrom::Device);
/// Draws a mask with the seed of `context`. In a job array (Layer::folds), each job's seed draws the job's
/// part of dimension 0, as in the job's own run.
at::Tensor dropout_mask(const at::Tensor& like, double p, const CallContext& context);

}  // namespace millrace
