// Stopping early: all ranks at the same step, whoever was asked and whenever.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>

#include <ATen/core/Tensor.h>

#include "runtime/comm/communicator.h"

namespace millrace {

/// Set from a signal handler or another thread; read between steps.
using StopFlag = std::atomic<bool>;

/// Rank 0 decides: at the end of each step it tells the others, without waiting, whether its flag is set; all
/// act on what it said one step before, so nobody waits for an answer. Not thread-safe.
class StopVote {
 public:
  /// Collective over `world`, which outlives it. `flag` null: never stops, sends nothing (the same on all
  /// ranks).
  StopVote(Communicator& world, const StopFlag* flag);
  ~StopVote();

  /// At the end of every step, on every rank: true on all of them or on none.
  bool stop_here();
  /// Before the ranks rest: waits for what is under way.
  void finish();

 private:
  struct Round {
    at::Tensor said;  ///< [1], 1: stop
    std::unique_ptr<Pending> pending;
  };
  void start_round();

  const StopFlag* flag_;
  std::unique_ptr<Communicator> group_;
  std::deque<Round> rounds_;  ///< oldest first
  std::uint64_t next_round_ = 0;
};

}  // namespace millrace
