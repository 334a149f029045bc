// Measures the steps of a rank, logs them, and keeps the spans of traced steps.
#pragma once

#include <optional>
#include <vector>

#include "runtime/base/progress_line.h"
#include "runtime/trace/trace_windows.h"
#include "runtime/train/loss_spikes.h"
#include "runtime/train/slow_steps.h"
#include "runtime/train/training.h"

namespace millrace {

/// Converts a rank's measurements to records, log lines and spans. Not thread-safe.
class StepReports {
 public:
  /// The measurements of a step, before it is logged.
  struct Measured {
    double seconds = 0, cpu_s = 0;
    TimePoint ended{};
    std::vector<double> lr{};  ///< by job
    StepTimes times{};
    std::vector<double> gradient_norms{};  ///< by job
    std::vector<LossSums> losses{};        ///< by array; on ranks of the last stage
  };

  /// `training` must outlive the object.
  explicit StepReports(Training& training) : t_(training) {}

  /// Sets which steps are traced. Called once, when the run's first step is known.
  void trace(std::vector<TraceWindow> windows) { windows_ = std::move(windows); }
  const std::vector<TraceWindow>& traced() const { return windows_; }
  bool is_traced(std::int64_t step) const;

  /// Starts the time of the first step; called when training starts or resumes after a pause.
  void begin();
  /// Returns the measurements since the previous call, or since begin().
  Measured measure(RankRunner& runner);
  /// Logs step `step` of this rank; with replicas that share steps, a rank has one of several. Throws
  /// NumericError if no job of several arrays has a finite loss.
  void log(std::int64_t step, Measured measured);
  /// Logs the step whose Update has just ended.
  void step_ended(RankRunner& runner, std::int64_t step, std::vector<double> lr);
  /// Records other work of the ranks between two traced steps, from `from` until now.
  void paused(SpanKind kind, TimePoint from);
  /// Must be called at the end of the run: takes the spans that belong to no step.
  void ended();

  /// Writes the spans of the traced steps into the output folder, if there is one. In a long run most of them
  /// are already in the file. A failure is a warning.
  void write_trace();
  /// Adds the medians over the steps to the report.
  void finish();

 private:
  void report_jobs(const StepRecord& record);
  bool is_spike(const StepRecord& record);
  void print_if_due(const StepRecord& record, std::int64_t first, TimePoint now);
  void take_loader_spans();
  /// Moves spans to the file, so that their memory does not grow with the run.
  void spill();
  void require_a_finite_loss(const LossSums& losses, std::int64_t step) const;

  Training& t_;
  std::vector<TraceWindow> windows_;
  std::vector<Span> spans_;                           ///< spans of traced steps that are not in trace_file_
  std::optional<SpanFile> trace_file_;                ///< set by the first spill
  std::vector<double> step_seconds_, samples_per_s_;  ///< by update
  TimePoint last_update_{}, last_print_{};
  LossSpikes spikes_;
  std::int64_t warns_of_spikes_from_ = 0;  ///< the first step whose spike is logged again
  SlowSteps slow_steps_;
  std::optional<WorkingLine> first_step_;  ///< until it is done
  double cpu_at_last_update_ = 0;
};

}  // namespace millrace
