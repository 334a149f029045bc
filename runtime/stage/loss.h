// Softmax cross-entropy on integer targets, the loss of the image models.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace millrace {

/// Of one microbatch. Sums in double, so that microbatches and replicas can be added.
struct LossResult {
  double loss = 0;  ///< mean over the microbatch
  std::int64_t top1 = 0;
  std::int64_t top5 = 0;
  std::int64_t samples = 0;
};

/// What the loss keeps for its gradient.
struct SavedLoss {
  at::Tensor log_probabilities;  // [B, C]
  at::Tensor target;             // [B] int64
};

/// logits: [B, C] float32; target: [B] int64 in [0, C) (DataError otherwise). `saved` may be nullptr
/// (evaluation).
LossResult cross_entropy(const at::Tensor& logits, const at::Tensor& target, SavedLoss* saved);
/// Gradient of `scale` x mean loss with respect to the logits: [B, C].
at::Tensor cross_entropy_backward(const SavedLoss& saved, double scale);

}  // namespace millrace
