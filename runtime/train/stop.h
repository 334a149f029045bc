// Stops a run early. All ranks stop after the same step, whichever rank was asked and whenever.
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
  int lag = 1;    ///< at the end of step n a rank reads the answers that all gave at the end of step n - lag
  int ahead = 0;  ///< when one rank ends step n, another may already work on step n + ahead
  /// the number of steps done at the end is a multiple of this (replicas that share the steps)
  int multiple = 1;
};

/// A question that all ranks answer again and again without waiting: each reads the answers of `lag` calls
/// before. A rank therefore waits only for a rank that is further behind than `lag`. That also bounds how far
/// one rank can run ahead of the others. Not thread-safe.
class AnyRank {
 public:
  /// Collective over `world`, which must outlive the object. Each `name` may be used once for each `world`.
  AnyRank(Communicator& world, const std::string& name, int lag);
  ~AnyRank();

  /// Gives this rank's answer `mine`, and returns whether any rank answered true `lag` calls before. A single
  /// rank reads its present answer. All ranks call it equally often and get the same result. The first `lag`
  /// calls return false.
  bool next(bool mine);
  /// Waits for the answers under way and forgets them. Call it before the ranks rest or start anew.
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

/// A vote on stopping. At the end of each step every rank says whether it was asked to stop. All ranks
/// learn it at the end of the same later step. They end after a step that none of them can have passed by
/// then. Not thread-safe.
class StopVote {
 public:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  /// Collective over `world`, which must outlive the object. If `flag` is null, the vote never stops and
  /// sends nothing; it must be null on all ranks or on none.
  StopVote(Communicator& world, const StopFlag* flag, const StopReach& reach);

  /// Every rank calls it at the end of every step, with the number of steps done.
  void completed(std::int64_t done);
  /// Returns the number of steps after which to end; kNever: go on. All ranks have the same number by the
  /// time that they come to it.
  std::int64_t limit() const { return limit_; }
  /// Waits for the votes under way. Call it before the ranks rest.
  void finish();

 private:
  const StopFlag* flag_;
  StopReach reach_;
  std::unique_ptr<AnyRank> asked_;
  std::int64_t limit_ = kNever;
};

}  // namespace millrace
