// What the profiler of layers is told. LibTorch-free.
#pragma once

#include <cstdint>
#include <functional>

#include "runtime/rules/precision.h"
#include "runtime/rules/update_options.h"

namespace millrace {

struct ProfileOptions {
  int microbatch = 1;                  ///< samples
  int warmup = 2;                      ///< passes not counted
  int repetitions = 5;                 ///< passes of a block; the median of each layer over all blocks counts
  int blocks = 3;                      ///< how far their totals differ is LayerGraph::measured.spread
  std::function<void()> before_block;  ///< e.g. meets other ranks, so that all compute at the same time
  /// Called after each pass over the model: how many are done, of how many. May be empty.
  std::function<void(std::int64_t done, std::int64_t total)> progress;
  std::uint64_t seed = 0;
  RuleOptions rule;
  Precision precision = Precision::Float32;
  bool sync_batch_norm = false;  ///< compute as replicas that share statistics do
};

}  // namespace millrace
