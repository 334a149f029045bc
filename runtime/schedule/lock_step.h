// Runs the lists of all ranks without times, to find which rank waits for which. Internal to this folder.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "runtime/schedule/message.h"

namespace millrace {

/// A run of all ranks' lists. A receive completes when its send was posted. Under Rendezvous a send completes
/// when its receive was posted; an exchange (message.h) is posted at once and completes as a whole. The k-th
/// Reduce of a stage completes when all replicas of the stage have reached theirs. `stages_that_meet` says by
/// stage whether replicas also meet in their k-th forward or backward; empty: nowhere. Linear in the number
/// of actions. The transfers must belong to the shape (Checker::structure first).
class LockStep {
 public:
  LockStep(std::vector<std::vector<Action>>& ranks, const PipelineShape& shape, Transport transport,
           std::vector<char> stages_that_meet = {});
  /// Runs until no rank can go on. Returns true if every rank came to its end.
  bool run();
  /// Moves receives up to the place where their rank stands, if a posted send waits for them; then those
  /// sends complete. Callers call it after run() returned false. It returns false if there is no such
  /// receive: the lists then deadlock under any transport. The move adds no dependency, because the send is
  /// already posted.
  bool hoist_receives();
  const std::vector<std::size_t>& positions() const { return at_; }

 private:
  struct Barrier {
    int arrived = 0;
    std::vector<std::size_t> waiting;
  };

  void advance(std::size_t rank);
  bool post_exchange(std::size_t rank);
  bool pass_reduce(std::size_t rank, const Action& action);
  bool meets(const Action& action) const {
    if (action.op == Op::Reduce) return true;
    return !stages_that_meet_.empty() && stages_that_meet_[action.stage.value] &&
           (action.op == Op::Forward || action.op == Op::Backward || action.op == Op::BackwardInput);
  }
  void wake(std::size_t rank);
  std::size_t message_of(const Action& a) const { return static_cast<std::size_t>(messages_.of(a)); }

  std::vector<std::vector<Action>>& ranks_;
  const PipelineShape& shape_;
  Transport transport_;
  std::vector<char> stages_that_meet_;
  MessageIndex messages_;
  std::vector<std::size_t> at_, posted_until_, ready_;
  std::vector<char> is_ready_, in_barrier_, released_;
  std::vector<char> send_posted_, recv_posted_;
  std::map<int, Barrier> barriers_;  ///< by stage
};

}  // namespace millrace
