// Replaces the weights by an update rule's averages during evaluations.
#pragma once

#include <ATen/core/Tensor.h>

#include "runtime/stage/stage_parts.h"

namespace millrace {

/// Keeps the trained weights while averages replace them. Not thread-safe.
class AveragedWeights {
 public:
  /// `parts` must outlive the object.
  explicit AveragedWeights(const ExecutorParts& parts) : parts_(parts) {}

  /// Replaces the newest weights by the rules' averages, or restores them. Collective over the replicas.
  /// Nothing else may read the weights meanwhile. Returns whether any weight changed.
  bool use(bool averages);

 private:
  const ExecutorParts& parts_;
  bool in_use_ = false;
  at::Tensor trained_{};  ///< [N] the trained weights, while averages replace them; else undefined
};

}  // namespace millrace
