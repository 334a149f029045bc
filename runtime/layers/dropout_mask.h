// The random numbers of every layer that drops.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "runtime/layers/layer.h"

namespace millrace {

/// 0 with probability `p`, else 1 / (1 - p): of the shape, dtype and device of `like`, a function of the seed
/// alone.
at::Tensor dropout_mask(const at::Tensor& like, double p, std::uint64_t seed);
/// By the seed of `context`; of a job array (Layer::folds) by each job's, for its part of dimension 0.
at::Tensor dropout_mask(const at::Tensor& like, double p, const CallContext& context);

}  // namespace millrace
