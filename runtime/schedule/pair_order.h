// Pairs of ranks, for transports that join each pair by itself and have no tags.
#pragma once

#include "runtime/base/rank_pairs.h"
#include "runtime/schedule/schedule.h"

namespace millrace {

/// Finds pairs of ranks whose lists have their messages, in one direction, in different orders. NCCL delivers
/// messages in the order of posting, so that such a rank would compute with another microbatch's tensor.
/// Pure.
Problems check_pair_order(const Schedule& schedule);

enum class Passes { Forward, ForwardAndBackward };

/// Returns who sends to whom in any schedule of `shape`. Pure.
RankPairs talking_pairs(const PipelineShape& shape, Passes passes);

}  // namespace millrace
