// Normalisation over groups of channels, and its gradients. The layers of single jobs and of job arrays use
// it.
// it.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/layers/layer.h"

namespace millrace {

/// Normalises x [N, C, ...] over `groups` groups of channels. `p` is weight and bias [C], or empty. `saved`
/// receives the data for the gradients.
at::Tensor normalise_groups(const at::Tensor& x, std::span<const at::Tensor> p, std::int64_t groups,
                            double epsilon, Saved* saved);
/// Returns the gradient of x, undefined if it is not needed. Stores the gradients of weight and bias in
/// `saved`.
at::Tensor group_gradients(const at::Tensor& grad, std::span<const at::Tensor> p, std::int64_t groups,
                           Saved& saved, bool needs_input);

}  // namespace millrace
