// How far each job of a run is. LibTorch-free.
// Jobs of one run may have begun at different steps of it, and may end at different ones: an array is put
// together from checkpoints of jobs, and each job has a number of steps of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/train/train_options.h"

namespace millrace {

/// Counts steps of the run ("step") and of each job ("own"): own = step - joined(job). Not thread-safe.
class JobSteps {
 public:
  /// `wanted`: the steps of its own that each job is to do. `end_together`: no job ends before the run does
  /// (asynchronous schedules).
  JobSteps(std::vector<std::int64_t> wanted, bool end_together);

  /// The run goes on after `start` steps with jobs that have done `own` steps each. A job of several that has
  /// done all of its steps has ended. It counts as if it had joined with the last job of its array that goes
  /// on: they read the same microbatches. `arrays`: the number of jobs of each array, in turn.
  void resume(std::int64_t start, std::span<const std::int64_t> own, std::span<const int> arrays);

  std::size_t size() const { return joined_.size(); }
  std::int64_t wanted(std::size_t job) const { return wanted_[job]; }
  std::int64_t joined(std::size_t job) const { return joined_[job]; }
  /// The job's own steps after `step` steps of the run.
  std::int64_t own(std::size_t job, std::int64_t step) const;
  bool ended_before_run(std::size_t job) const { return ended_with_[job].has_value(); }
  bool has_ended(std::size_t job, std::int64_t step) const;
  /// By job, whether it has ended after `step` steps; empty if none has.
  std::vector<char> ended_at(std::int64_t step) const;
  /// The step of the run after which `job` has done its own.
  std::int64_t end(std::size_t job) const { return joined_[job] + wanted_[job]; }
  /// The step of the run after which every job has done its own.
  std::int64_t last() const;
  /// Whether some job's own steps differ from the run's.
  bool apart() const;
  /// Whether the jobs have different numbers of steps to do.
  bool end_apart() const;

 private:
  std::vector<std::int64_t> wanted_, joined_;
  std::vector<std::optional<std::int64_t>> ended_with_;  ///< own steps of those that ended before this run
  bool end_together_;
  std::int64_t start_ = 0;
};

/// The steps that each of options.jobs is to do.
std::vector<std::int64_t> wanted_steps(const TrainOptions& options);

}  // namespace millrace
