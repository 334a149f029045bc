// Stopping early: all ranks after the same step, whoever was asked and whenever.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "runtime/comm/communicator.h"
#include "runtime/train/stop_flag.h"

namespace millrace {

/// How far ranks may be apart, in steps.
struct StopReach {
  int lag = 1;       ///< a rank at the end of step n reads what all said at the end of step n - lag
  int ahead = 0;     ///< a rank at the end of step n may already work on step n + ahead
  int multiple = 1;  ///< the last step is a multiple of this (replicas that take turns)
};

/// A question that all ranks answer again and again, each time without waiting: what they read is what was
/// answered `lag` times before. So nobody waits but for a rank that is further behind than that, which also
/// bounds how far a rank can run ahead of the others. Not thread-safe.
class AnyRank {
 public:
  /// Collective over `world`, which outlives it; `name` once for each `world`.
  AnyRank(Communicator& world, const std::string& name, int lag);
  ~AnyRank();

  /// All ranks call it equally often. Whether any rank said `mine` = true, `lag` calls before (a rank alone:
  /// now); the same on all of them. False in the first `lag` calls.
  bool next(bool mine);
  /// Before the ranks rest, or start anew: waits for what is under way and forgets it.
  void finish();

 private:
  struct Round {
    at::Tensor votes;  ///< [1], float32: ranks that said yes
    std::unique_ptr<Pending> pending;
  };

  std::size_t lag_;
  std::unique_ptr<Communicator> group_;  ///< null: this rank is alone
  std::deque<Round> rounds_;             ///< oldest first
};

/// At the end of each step every rank says whether it was asked to stop; all learn it at the end of the same
/// later step, and end after one that nobody can have begun to pass. Not thread-safe.
class StopVote {
 public:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  /// Collective over `world`, which outlives it. `flag` null: never stops, sends nothing (the same on all
  /// ranks).
  StopVote(Communicator& world, const StopFlag* flag, const StopReach& reach);

  /// At the end of every step, on every rank, with the number of steps done.
  void completed(std::int64_t done);
  /// Steps after which to end: the same number on all ranks by the time they come to it. kNever: go on.
  std::int64_t limit() const { return limit_; }
  /// Before the ranks rest: waits for what is under way.
  void finish();

 private:
  const StopFlag* flag_;
  StopReach reach_;
  std::unique_ptr<AnyRank> asked_;
  std::int64_t limit_ = kNever;
};

}  // namespace millrace
