// The times of a run's own trace as costs for the simulator: then prediction and measurement
// differ by the model alone, no longer by the times that were put into it. LibTorch-free.
#pragma once

#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include "runtime/plan/plan.h"
#include "runtime/schedule/schedule.h"
#include "runtime/trace/trace.h"

namespace millrace {

/// Seconds of single actions of averaged steps that follow each other without a pause.
struct ActionTimes {
  /// Rank, kind, stage, the receiver's stage (Send: the message's transfer; else -1), microbatch from the
  /// first averaged one on.
  using Which = std::tuple<int, SpanKind, int, int, std::int64_t>;
  std::map<Which, double> seconds;
  int steps = 0;
  std::int64_t first = 0;     ///< microbatch of the run that is 0 in `seconds`
  std::vector<double> start;  ///< by rank: when it begins the first averaged step, from the earliest on
};

/// Means over the traced steps. The first step of each stretch without a gap (steps that were not traced, an
/// evaluation, a checkpoint) is left out: it warms up, and gives the start of the second.
struct MeasuredCosts {
  /// Seconds by stage and by link, of one microbatch. A computation has what its rank did for it besides: the
  /// batch, messages that were there already, handing its own message over, and the time between two actions.
  /// `transfer` is the time from the end of a send to the end of a receive that waited for it. Where ranks
  /// agreed before their updates, `agreement` is what that took the last of them, its norm included.
  ScheduleCosts costs;
  /// The computations alone, by stage: to set beside a profile. Where no backward was split, `backward_input`
  /// and `backward_weight` are a half each.
  ScheduleCosts alone;
  bool split_backwards = false;
  double step_s = 0;  ///< of the same steps, of the rank that took longest; asynchronous: of a minibatch
  int steps = 0;      ///< that were averaged
  std::vector<ActionTimes> each;  ///< by stretch
};

/// `spans_by_rank` of the ranks of `plan`, on one clock (one host). Problem: fewer than three traced steps,
/// ranks without a trace, a stage without a computation, a model that is trained in turns.
Result<MeasuredCosts> measured_costs(const Plan& plan, const PipelineShape& shape,
                                     const std::vector<std::vector<Span>>& spans_by_rank);

/// Seconds of a step in a run of many with these costs; asynchronous: of a minibatch.
/// Problem if the schedule cannot be made.
Result<double> simulated_step(const Plan& plan, const PipelineShape& shape, const ScheduleCosts& costs,
                              const std::optional<ScheduleFile>& file = std::nullopt);

/// The traced steps once more, every action with its own time, in seconds of a step: where ranks wait for
/// each other a step costs the mean of the slower one's times, which is more than the slower one's mean. What
/// is left to the measured step is the error of the model. Problem if the schedule cannot be made.
Result<double> replayed_step(const Plan& plan, const PipelineShape& shape, const MeasuredCosts& measured,
                             const std::optional<ScheduleFile>& file = std::nullopt);

}  // namespace millrace
