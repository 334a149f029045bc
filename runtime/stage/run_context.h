// The settings for running the microbatches of a step, of an asynchronous run or of an evaluation.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/model/batch.h"

namespace millrace {

/// A context is constant until the next step, run or evaluation starts.
struct RunContext {
  bool training = true;  ///< false: an evaluation; nothing is saved for a backward
  /// position of microbatch 0: message tags and random draws depend on positions
  std::int64_t first_position = 0;
  ExtentOf extent_of{};  ///< by position, the same on every rank; null: the layout's nominal extent
  std::vector<std::int64_t> begins{};  ///< by job: the position at which its own run starts; empty: 0
  std::int64_t evaluation_shift =
      0;  ///< evaluations subtract this from positions for random draws, so that each draws the same numbers
  std::vector<double> loss_scales{};  ///< by job: the factor on its loss; empty: 1

  std::int64_t position_of(MicrobatchId microbatch) const { return first_position + microbatch.value; }
};

}  // namespace millrace
