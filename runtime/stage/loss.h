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
/// The same where the CPU must not wait for the device: float64 [5] on the logits' device: mean loss,
/// mean loss x samples, samples, top-1, top-5. Targets are not checked (check_targets, before their upload).
at::Tensor cross_entropy_sums(const at::Tensor& logits, const at::Tensor& target, SavedLoss* saved);
/// `target`: [B] int64 on the CPU. Throws DataError unless all are in [0, num_classes).
void check_targets(const at::Tensor& target, std::int64_t num_classes);
/// Gradient of `scale` x mean loss with respect to the logits: [B, C].
at::Tensor cross_entropy_backward(const SavedLoss& saved, double scale);

}  // namespace millrace
