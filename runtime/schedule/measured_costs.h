// Turns the times of a run's own trace into costs for the simulator. With them, prediction and measurement
// differ only by the simulator's model, not by its input. LibTorch-free.
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

/// The seconds of single actions in one stretch: averaged steps that follow each other without a pause.
struct ActionTimes {
  /// Rank, kind, stage, the receiver's stage, and the microbatch, counted from the first averaged one. A Send
  /// has the time of its message's transfer. Other kinds have -1 for the receiver's stage.
  using Which = std::tuple<int, SpanKind, int, int, std::int64_t>;
  std::map<Which, double> seconds;
  int steps = 0;
  std::int64_t first = 0;  ///< microbatch of the run that is 0 in `seconds`
  std::vector<double>
      start;  ///< by rank: seconds at which it begins the first averaged step, after the earliest rank
};

/// Means over the traced steps. Steps that were not traced, evaluations and checkpoints are gaps between
/// stretches. The first step of each stretch is left out: it warms up, and gives the start of the second.
struct MeasuredCosts {
  /// Seconds of one microbatch, by stage and by link. A computation includes what its rank did for it:
  /// loading the batch, taking messages that were there already, posting its own message, and the time
  /// between two actions. `transfer` is the time from the end of a send to the end of a receive that waited
  /// for it. If ranks agreed before their updates, `agreement` is the time that the last rank took for it,
  /// its norm included.
  ScheduleCosts costs;
  /// Seconds of the computations alone, by stage, to compare with a profile. If no backward was split,
  /// `backward_input` and `backward_weight` have half of it each.
  ScheduleCosts alone;
  bool split_backwards = false;
  /// Mean seconds of the averaged steps on the slowest rank; asynchronous: of a minibatch.
  double step_s = 0;
  int steps = 0;                  ///< that were averaged
  std::vector<ActionTimes> each;  ///< by stretch
};

/// Averages the spans of the ranks of `plan`; all must be on one clock (one host). Problems are: fewer than
/// three traced steps, a rank without a trace, a stage without a computation, a model that is trained in
/// turns.
Result<MeasuredCosts> measured_costs(const Plan& plan, const PipelineShape& shape,
                                     const std::vector<std::vector<Span>>& spans_by_rank);

/// Returns the seconds of a step among many with these costs; asynchronous: of a minibatch. It is a Problem
/// if the schedule cannot be made.
Result<double> simulated_step(const Plan& plan, const PipelineShape& shape, const ScheduleCosts& costs,
                              const std::optional<ScheduleFile>& file = std::nullopt);

/// Simulates the traced steps again, with every action's own time, and returns the seconds of a step. Where
/// ranks wait for each other, a step costs the mean of the slower rank's times, which is more than the time
/// of the slower mean. The remaining difference to the measured step is the error of the simulator's model.
/// It is a Problem if the schedule cannot be made.
Result<double> replayed_step(const Plan& plan, const PipelineShape& shape, const MeasuredCosts& measured,
                             const std::optional<ScheduleFile>& file = std::nullopt);

}  // namespace millrace
