// Normalisation over groups of channels and its gradients: what the layers of one job and of many call.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/layers/layer.h"

namespace millrace {

/// x [N, C, ...] of `groups` groups of channels; p: weight and bias [C], or empty. Saved: what the gradients
/// need.
at::Tensor normalise_groups(const at::Tensor& x, std::span<const at::Tensor> p, std::int64_t groups,
                            double epsilon, Saved* saved);
/// The gradient of x, undefined where it is not needed; those of weight and bias are then in `saved`.
at::Tensor group_gradients(const at::Tensor& grad, std::span<const at::Tensor> p, std::int64_t groups,
                           Saved& saved, bool needs_input);

}  // namespace millrace
