// Stops a run early. All ranks stop after the same step, whichever rank received the request and when.
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

/// The number of steps by which ranks may be apart.
struct StopReach {
  /// at the end of step n a rank reads the answers that all ranks gave at the end of step n - lag
  int lag = 1;
  int ahead = 0;  ///< when one rank ends step n, another may already work on step n + ahead
  /// the number of steps done at the end is a multiple of this (replicas that share the steps)
  int multiple = 1;
};

/// A vote that all ranks repeat without waiting: each call reads the answers of `lag` calls before. A rank
/// therefore waits only for a rank that is more than `lag` calls behind. This also bounds how far one rank
/// can run ahead of the others. Not thread-safe.
class AnyRank {
 public:
  /// Collective over `world`, which must outlive the object. Each `name` may be used once for each `world`.
  AnyRank(Communicator& world, const std::string& name, int lag);
  ~AnyRank();

  /// Casts this rank's answer `mine`, and returns whether any rank answered true `lag` calls before. A single
  /// rank reads its current answer. All ranks must make the same number of calls, and get the same results.
  /// The first `lag` calls return false.
  bool next(bool mine);
  /// Waits for the pending answers and discards them. Call it before the ranks pause or restart.
  void finish();

 private:
  struct Vote {
    at::Tensor votes;  ///< [1], float32: the number of ranks that answered true
    std::unique_ptr<Pending> pending;
  };

  std::size_t lag_;
  std::unique_ptr<Communicator> group_;  ///< null: this rank is alone
  std::deque<Vote> pending_votes_;       ///< oldest first
};

/// A vote on stopping. At the end of each step every rank votes on whether it received a stop request. All
/// ranks read the result at the end of the same later step. They end after a step that none of them can have
/// passed by then. Not thread-safe.
class StopVote {
 public:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  /// Collective over `world`, which must outlive the object. If `flag` is null, the vote never stops and
  /// sends nothing; it must be null on all ranks or on none.
  StopVote(Communicator& world, const StopFlag* flag, const StopReach& reach);

  /// Must be called by every rank at the end of every step, with the number of completed steps.
  void completed(std::int64_t done);
  /// Returns the number of steps after which to end; kNever: continue. All ranks have the same number before
  /// they reach it.
  std::int64_t limit() const { return limit_; }
  /// Waits for the pending votes. Call it before the ranks pause.
  void finish();

 private:
  const StopFlag* flag_;
  StopReach reach_;
  std::unique_ptr<AnyRank> asked_;
  std::int64_t limit_ = kNever;
};

}  // namespace millrace
