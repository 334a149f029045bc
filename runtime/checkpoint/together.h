// Work with files that all ranks must come through alike: done on each, judged together.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "runtime/base/ids.h"
#include "runtime/comm/communicator.h"

namespace millrace {

/// What a rank could not do.
struct RankProblem {
  RankId rank;
  std::string what;  ///< with its hint
};
std::string to_string(const RankProblem& problem);  ///< "rank 2: ..."

/// Collective: every rank does its `work` (which throws to fail), and all learn of the lowest rank that
/// failed; nullopt: nobody did. While somebody works the others keep asking, so that no message waits for
/// long and the deadline of messages does not count here: `deadline` does, and beyond it all throw
/// CheckpointError saying `what` and who is late. (The late one waits for its own work nevertheless: nothing
/// can take a write back from the kernel.) Throws PeerError if a rank is lost. `work` must not communicate.
std::optional<RankProblem> run_together(Communicator& world, std::chrono::milliseconds deadline,
                                        const std::string& what, const std::function<void()>& work);

/// Collective: the text of `root`, on every rank.
std::string broadcast_text(Communicator& world, const std::string& text, RankId root = RankId(0));

}  // namespace millrace
