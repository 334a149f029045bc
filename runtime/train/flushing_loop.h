// The training loop of schedules that flush: the same actions for every step.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/train/first_uses.h"
#include "runtime/train/step_reports.h"

namespace millrace {

/// Runs the action lists step by step, turn by turn. Not thread-safe.
class FlushingLoop {
 public:
  /// Makes the action lists, and proves that they terminate. Both arguments must outlive the object. Throws
  /// ConfigError.
  FlushingLoop(Training& training, StepReports& reports);

  /// Trains until `end` steps are done, or until the step after which a stop was requested.
  void run_to(std::int64_t end);

 private:
  void leave_out_ended_jobs();
  bool in_stretches() const;
  void go_a_stretch(std::int64_t end);

  Training& t_;
  StepReports& reports_;
  RankRunner runner_;
  FirstUses first_uses_;
  std::vector<std::vector<Action>> turns_;  ///< the actions of a step, by turn
  std::vector<char> ended_{};               ///< jobs that the actions skip; empty: none
  std::int64_t stretch_ = 1;                ///< steps, if arrays alternate in_stretches()
};

}  // namespace millrace
