// The options of the profiler of layers. LibTorch-free.
#pragma once

#include <cstdint>
#include <functional>

#include "runtime/rules/precision.h"
#include "runtime/rules/update_options.h"

namespace millrace {

class Communicator;

struct ProfileOptions {
  int microbatch = 1;  ///< samples
  int warmup = 2;      ///< uncounted passes before the first block
  /// passes in a block. The time of a layer is its median over the passes of all blocks
  int repetitions = 5;
  int blocks = 3;  ///< number of blocks; LayerGraph::measured.spread is the difference between their totals
  /// called before each block, e.g. to synchronize with other ranks so that all compute at once
  std::function<void()> before_block;
  /// Called after each pass over the model, with the numbers of completed and of all passes. May be empty.
  std::function<void(std::int64_t done, std::int64_t total)> progress;
  std::uint64_t seed = 0;
  RuleOptions rule;
  Precision precision = Precision::Float32;
  bool sync_batch_norm = false;  ///< compute like replicas that share their batch statistics
  /// The ranks of one host that profile at the same time: the time of gradient sums is measured among them.
  /// All of them must profile the same model. Null: it is not measured.
  Communicator* replicas = nullptr;
  /// Measured::core_share of these ranks. Below 1, all times are processor time / core_share.
  double core_share = 1;
};

}  // namespace millrace
