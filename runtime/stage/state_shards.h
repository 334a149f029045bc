// Shards rule state as ZeRO-1 does (arXiv 1910.02054, section 5.1). Each replica of a stage keeps the rule
// state for a part of the parameters, updates that part, and receives the weights of the other parts. The
// bits are the same as without shards.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/comm/communicator.h"
#include "runtime/stage/flat_blocks.h"

namespace millrace {

/// The division of a stage's flat tensors among its replicas. Without sharding, this rank has all of it.
/// Functions other than mine() are collective over the replicas. Not thread-safe.
class StateShards {
 public:
  /// `replicas` must outlive the object; null: no sharding.
  StateShards(const ParameterStore& store, Communicator* replicas);

  FlatRange mine() const { return ranges_.at(rank_); }
  bool shared() const { return replicas_ != nullptr; }
  /// Completes `flat` [N], which has this rank's part, with the other ranks' parts.
  void all_gather_(const at::Tensor& flat);
  /// Returns the whole tensor [N] on the first replica, and an undefined one on the others. `part` is this
  /// rank's part.
  at::Tensor gather_to_first(const at::Tensor& part);
  /// Sums n doubles over the replicas. Each is zero on all replicas but one, so the sum is exact in any
  /// order.
  void sum_(std::vector<double>& values);

 private:
  Communicator* replicas_;
  std::size_t rank_ = 0;
  std::vector<FlatRange> ranges_;  ///< by replica
};

}  // namespace millrace
