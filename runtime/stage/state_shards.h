// ZeRO-1 (arXiv 1910.02054, section 5.1): each replica of a stage keeps the rule's state of a part of the
// parameters, updates that part, and gets the others' weights. The same bits as without.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/comm/communicator.h"
#include "runtime/stage/flat_blocks.h"

namespace millrace {

/// Who has which part of a stage's flat tensors. Without replicas, or not shared: all of it is this rank's.
/// Functions other than mine() are collective over the replicas. Not thread-safe.
class StateShards {
 public:
  /// `replicas` outlives it; null: nothing is shared.
  StateShards(const ParameterStore& store, Communicator* replicas);

  FlatRange mine() const { return ranges_.at(rank_); }
  bool shared() const { return replicas_ != nullptr; }
  /// `flat` [N] has this rank's part; gets those of the others.
  void all_gather_(const at::Tensor& flat);
  /// The whole [N] on the first replica, undefined on the others; `part`: this rank's.
  at::Tensor gather_to_first(const at::Tensor& part);
  /// Adds up [n] doubles, which are zero where another rank has the part: exact, in any order.
  void sum_(std::vector<double>& values);

 private:
  Communicator* replicas_;
  std::size_t rank_ = 0;
  std::vector<FlatRange> ranges_;  ///< by replica
};

}  // namespace millrace
