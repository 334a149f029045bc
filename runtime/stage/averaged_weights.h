// The averages of an update rule in the place of the weights, for evaluations.
#pragma once

#include <ATen/core/Tensor.h>

#include "runtime/stage/stage_parts.h"

namespace millrace {

/// Keeps the trained weights while averages are in their place. Not thread-safe.
class AveragedWeights {
 public:
  /// `parts` must outlive the object.
  explicit AveragedWeights(const ExecutorParts& parts) : parts_(parts) {}

  /// Puts the rules' averages into the place of the newest weights, or takes them out again. Collective over
  /// the replicas. Nothing else may read the weights meanwhile. Returns whether any weight changed.
  bool use(bool averages);

 private:
  const ExecutorParts& parts_;
  bool in_use_ = false;
  at::Tensor trained_{};  ///< [N] the weights, while averages are in their place; else undefined
};

}  // namespace millrace
