// The random numbers of every layer that drops.
#pragma once

#include <cstdint>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "runtime/layers/layer.h"

namespace millrace {

/// A generator of an accelerator's own kind that begins at `seed`: one that counts (Philox), so that what it
/// draws depends on the seed and on how much is drawn, not on what was drawn before.
at::Generator seeded_generator(at::Device device, std::uint64_t seed);

/// 0 with probability `p` below 1, else 1 / (1 - p): of the shape, dtype and device of `like`, a function of
/// the seed alone, on devices other than the CPU also of their kind.
at::Tensor dropout_mask(const at::Tensor& like, double p, std::uint64_t seed,
                        MasksFrom from = MasksFrom::Device);
/// Draws a mask by the seed of `context`. In a job array (Layer::folds) each job's seed draws the job's part
/// of dimension 0, as the job draws it by itself.
at::Tensor dropout_mask(const at::Tensor& like, double p, const CallContext& context);

}  // namespace millrace
