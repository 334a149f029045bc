// Work with files that succeeds on all ranks or on none: each rank does it, and all judge it together.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "runtime/base/ids.h"
#include "runtime/comm/communicator.h"

namespace millrace {

/// A rank's failure.
struct RankProblem {
  RankId rank;
  std::string what;  ///< the error's text with its hint
};
std::string to_string(const RankProblem& problem);  ///< "rank 2: ..."

/// Runs `work` on every rank; it throws to fail. Collective. Returns the problem of the lowest rank that
/// failed, on all ranks; nullopt: none failed. `work` must not communicate. Throws PeerError if a rank is
/// lost.
/// While a rank works, the others keep asking. So no message waits for long, and the deadline of messages
/// does not limit the work. `deadline` does: beyond it all ranks throw CheckpointError, which says `what` and
/// which ranks are late. A late rank still waits for its own work, because a write cannot be taken back from
/// the kernel.
std::optional<RankProblem> run_together(Communicator& world, std::chrono::milliseconds deadline,
                                        const std::string& what, const std::function<void()>& work);

/// Returns the text of `root` on every rank. Collective.
std::string broadcast_text(Communicator& world, const std::string& text, RankId root = RankId(0));

}  // namespace millrace
