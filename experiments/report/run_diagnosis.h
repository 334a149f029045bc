// The reasons why a run was slow: late ranks and steps, waits for data, the bubble beside its bound, messages
// that computation does not hide, memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "experiments/runs/run_data.h"

namespace millrace {

/// Above so many times the median a rank or a step is named.
inline constexpr double kStraggles = 1.5;
/// A step stalls if its wait for data is more than this share of it.
inline constexpr double kStalls = 0.1;

/// A rank that computes for longer than the median rank. With an even number of ranks that is the faster of
/// the two in the middle.
struct SlowRank {
  int rank = 0, stage = -1;
  double ratio = 0;
  double compute_s = 0;  ///< median of a step: forwards, backwards, update
};
struct SlowStep {
  std::int64_t step = 0;
  double ratio = 0;   ///< to the rank's own median step
  double step_s = 0;  ///< on the rank with the highest ratio
  double over_s = 0;  ///< more than its median step
  /// The phase that grew most beyond its median, over all ranks. Waits for messages do not count: they follow
  /// from others. Empty: none grew by three tenths of `over_s`.
  int rank = 0;
  std::string phase;
  double more_s = 0;
};
/// Waits of a rank for its batches, over the steps after the first.
struct DataStall {
  int rank = 0;
  double mean_s = 0, share = 0;  ///< share of the steps' time
  std::int64_t steps = 0;        ///< that stalled
  std::int64_t longest_step = 0;
  double longest_s = 0;
};
/// Share of a step in which a rank does not compute.
struct RankBubble {
  int rank = 0;
  double measured = 0;    ///< median of the steps
  double from_trace = 0;  ///< of the traced steps that `bound` is of
  double bound = 0;       ///< the schedule's, with this run's own computations, if nothing else took time
};
struct Bubbles {
  std::vector<RankBubble> ranks;
  double equal_stages = -1;  ///< the schedule's with equal stages; -1: not known
  std::string no_bound;      ///< why there is no bound
};
/// Messages to a rank in the traced steps, per step.
struct RankOverlap {
  int rank = 0;
  double messages = 0;
  double under_way_s = 0;  ///< at least one was, from the begin of its send until its receiver knew of it
  double hidden = 0;       ///< share of that in which the receiver computed
  double waited_s = 0;     ///< the receiver did nothing but wait for one
};

std::vector<SlowRank> slow_ranks(const RunData& run);
std::vector<SlowStep> slow_steps(const RunData& run);  ///< the highest ratio first
std::vector<DataStall> data_stalls(const RunData& run);
Bubbles bubbles_of(const RunData& run);
std::vector<RankOverlap> overlaps_of(const RunData& run);

/// Cards of all of it; empty parts are left out.
std::string diagnosis_html(const RunData& run);
/// Lines for a terminal: ranks and steps that straggle, and ranks that wait for data. Empty: none.
std::vector<std::string> diagnosis_lines(const RunData& run);

}  // namespace millrace
