// Stopping early: all ranks after the same step, whoever was asked and whenever.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>

#include <ATen/core/Tensor.h>

#include "runtime/comm/communicator.h"

namespace millrace {

/// Set from a signal handler or another thread; read between steps.
using StopFlag = std::atomic<bool>;

/// How far ranks may be apart, in steps.
struct StopReach {
  int lag = 1;       ///< a rank at the end of step n reads what rank 0 said at the end of step n - lag
  int ahead = 0;     ///< a rank at the end of step n may already work on step n + ahead
  int multiple = 1;  ///< the last step is a multiple of this (replicas that take turns)
};

/// Rank 0 decides: at the end of each step it tells the others, without waiting, after which step to end; it
/// names one that nobody can have begun to pass. What they read was said `lag` steps before, so nobody waits
/// for an answer. Not thread-safe.
class StopVote {
 public:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  /// Collective over `world`, which outlives it. `flag` null: never stops, sends nothing (the same on all
  /// ranks).
  StopVote(Communicator& world, const StopFlag* flag, const StopReach& reach);
  ~StopVote();

  /// At the end of every step, on every rank, with the number of steps done.
  void completed(std::int64_t done);
  /// Steps after which to end: the same number on all ranks by the time they come to it. kNever: go on.
  std::int64_t limit() const { return limit_; }
  /// Before the ranks rest: waits for what is under way.
  void finish();

 private:
  struct Round {
    at::Tensor said;  ///< [1], float64: the limit, 0: go on
    std::unique_ptr<Pending> pending;
  };
  void start_round();

  const StopFlag* flag_;
  StopReach reach_;
  std::unique_ptr<Communicator> group_;
  std::deque<Round> rounds_;  ///< oldest first
  std::uint64_t next_round_ = 0;
  std::int64_t limit_ = kNever;
};

}  // namespace millrace
