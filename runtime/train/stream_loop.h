// The training loop of asynchronous schedules: the pipeline is filled once and drained once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "runtime/schedule/schedule_stream.h"
#include "runtime/train/step_reports.h"

namespace millrace {

/// Microbatches are numbered from the run's first one. Not thread-safe.
class StreamLoop {
 public:
  /// Proves that the schedule terminates for any length. `older_versions`: versions of the weights before the
  /// current one, which the first forwards use, as in the run that saved them. `rests_after`: the steps after
  /// which ranks may pause. All must outlive the object. Throws ConfigError.
  StreamLoop(Training& training, StepReports& reports, std::int64_t older_versions,
             std::function<bool(std::int64_t step)> rests_after);

  /// Trains until `end` steps are done, or until the step after which a stop was requested. Microbatches of
  /// later steps that have started remain in flight.
  void run_to(std::int64_t end);
  /// Pauses the ranks. Microbatches in flight are set aside, and weights and running statistics are those of
  /// the completed steps, as if no later step had started.
  void rest();

 private:
  Training& t_;
  StepReports& reports_;
  std::int64_t through_host_;  ///< messages of the first run_to() after a pause
  bool rested_ = true;
  std::shared_ptr<const ScheduleStream> stream_;
  RankRunner runner_;
};

}  // namespace millrace
