// The settings in which microbatches of a step, of an asynchronous run or of an evaluation run.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/model/batch.h"

namespace millrace {

/// A context stays the same until the next step, run or evaluation begins.
struct RunContext {
  bool training = true;             ///< false: an evaluation; nothing is saved for a backward
  std::int64_t first_position = 0;  ///< position of microbatch 0: messages and random draws go by positions
  ExtentOf extent_of{};  ///< by position, the same on every rank; null: the layout's nominal extent
  std::vector<std::int64_t> begins{};  ///< by job: the position where its own run begins; empty: 0
  std::int64_t evaluation_shift =
      0;  ///< evaluations draw for positions less this, so that each draws the same
  std::vector<double> loss_scales{};  ///< by job: the factor on its loss; empty: 1

  std::int64_t position_of(MicrobatchId microbatch) const { return first_position + microbatch.value; }
};

}  // namespace millrace
