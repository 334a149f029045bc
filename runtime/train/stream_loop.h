// The training loop of asynchronous schedules: the pipeline is filled once and drained once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "runtime/schedule/schedule_stream.h"
#include "runtime/train/step_reports.h"

namespace millrace {

/// Microbatches of the loop count from the run's first one. Not thread-safe.
class StreamLoop {
 public:
  /// Proves that the schedule ends at any length. `older_versions`: versions of the weights before the
  /// current one, which the first forwards use, as they did in the run that saved them. `rests_after`: the
  /// steps after which ranks may rest. All must outlive the object. Throws ConfigError.
  StreamLoop(Training& training, StepReports& reports, std::int64_t older_versions,
             std::function<bool(std::int64_t step)> rests_after);

  /// Trains until `end` steps are done, or to the step after which the run was asked to stop. What later
  /// steps have begun by then stays under way.
  void run_to(std::int64_t end);
  /// The ranks rest. What is under way is put aside, and weights and running statistics are those of the
  /// steps done, as if nothing else had begun.
  void rest();

 private:
  Training& t_;
  StepReports& reports_;
  std::int64_t through_host_;  ///< messages of the next run_to() that is behind a rest
  bool rested_ = true;
  std::shared_ptr<const ScheduleStream> stream_;
  RankRunner runner_;
};

}  // namespace millrace
