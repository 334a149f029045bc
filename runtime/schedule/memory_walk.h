// The change of a rank's memory by each action of its list, by order alone. Internal to this
// folder: counts (peaks_of) and bytes (peak_bytes_of) are sums over it.
#pragma once

#include <functional>
#include <span>

#include "runtime/schedule/schedule.h"

namespace millrace {

/// The change by one action, for its stage and array on its rank.
struct MemoryStep {
  int stash = 0;  ///< change of the stashed microbatches: +1 at the forward, -1 at the weight gradient
  int open =
      0;  ///< change of those whose backward is half done: +1 at the input gradient, -1 at the weights'
  int versions = 0;  ///< change of the live weight versions: +1 if an update leaves an old one in use
  int alive = 1;     ///< live versions after the action, the current one included
};

/// Calls `visit` for each action of one rank, in order. A transfer changes nothing. `versions`:
/// forward_versions of the whole schedule. Linear in the number of actions.
void walk_memory(const std::vector<Action>& actions, const PipelineShape& shape,
                 const std::vector<std::int64_t>& versions,
                 const std::function<void(const Action&, const MemoryStep&)>& visit);

inline bool is_backward(Op op) {
  return op == Op::Backward || op == Op::BackwardInput || op == Op::BackwardWeight;
}

/// Returns the receives of a rank's list, in order.
std::vector<Action> receives_of(const std::vector<Action>& actions);

/// Calls `visit` for each message whose receive is posted after `done` of them. A microbatch that comes from
/// several stages is one message.
void visit_posted(std::span<const Action> receives, std::size_t done,
                  const std::function<void(const Action&)>& visit);

}  // namespace millrace
