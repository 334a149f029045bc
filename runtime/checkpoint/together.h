// Work with files that succeeds on all ranks or on none: each rank does it, and all exchange the outcome.
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
  std::string what;  ///< the error's text, including its hint
};
std::string to_string(const RankProblem& problem);  ///< "rank 2: ..."

/// Runs `work` on every rank; it throws to fail. Collective. Returns the error of the lowest failed rank, on
/// all ranks; nullopt: none failed. `work` must not communicate. Throws PeerError if a rank is lost.
/// While a rank works, the others keep polling. No message therefore waits for long, and the deadline of
/// messages does not limit the work. `deadline` does: after it, all ranks throw CheckpointError, which names
/// `what` and the late ranks. A late rank still waits for its own work, because the kernel cannot cancel a
/// write.
std::optional<RankProblem> run_together(Communicator& world, std::chrono::milliseconds deadline,
                                        const std::string& what, const std::function<void()>& work);

/// Returns `root`'s text on every rank. Collective.
std::string broadcast_text(Communicator& world, const std::string& text, RankId root = RankId(0));

}  // namespace millrace
