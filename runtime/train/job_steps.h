// Counts the steps of each job of a run. LibTorch-free.
// The jobs of a run may start and end at different steps: an array can be assembled from checkpoints of jobs,
// and each job has its own number of steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/train/train_options.h"

namespace millrace {

/// Converts between the steps of the run ("step") and those of each job ("own"): own = step - joined(job).
/// Not thread-safe.
class JobSteps {
 public:
  /// `wanted` is the number of own steps for each job. With `end_together` no job ends before the run does
  /// (asynchronous schedules).
  JobSteps(std::vector<std::int64_t> wanted, bool end_together);

  /// Resumes after `start` steps of the run, with jobs that have done `own` steps each. If the run has
  /// several jobs, a job that has done all its steps has ended. Its joined() becomes that of the first
  /// continuing job of its array, because both read the same microbatches. `arrays` is the number of jobs of
  /// each array, in order.
  void resume(std::int64_t start, std::span<const std::int64_t> own, std::span<const int> arrays);

  std::size_t size() const { return joined_.size(); }
  std::int64_t wanted(std::size_t job) const { return wanted_[job]; }
  std::int64_t joined(std::size_t job) const { return joined_[job]; }
  /// Returns the job's own steps after `step` steps of the run.
  std::int64_t own(std::size_t job, std::int64_t step) const;
  bool ended_before_run(std::size_t job) const { return ended_with_[job].has_value(); }
  bool has_ended(std::size_t job, std::int64_t step) const;
  /// Returns for each job whether it has ended after `step` steps. The vector is empty if no job has ended.
  std::vector<char> ended_at(std::int64_t step) const;
  /// Returns the number of steps of the run after which `job` has done its own.
  std::int64_t end(std::size_t job) const { return joined_[job] + wanted_[job]; }
  /// Returns the number of steps of the run after which every job has done its own. Jobs that ended before
  /// this run are ignored.
  std::int64_t last() const;
  /// Returns whether some job's own steps differ from the run's.
  bool apart() const;
  /// Returns whether the jobs have different numbers of steps to do.
  bool end_apart() const;

 private:
  std::vector<std::int64_t> wanted_, joined_;
  /// by job: its own step count if it ended before this run
  std::vector<std::optional<std::int64_t>> ended_with_;
  bool end_together_;
  std::int64_t start_ = 0;
};

/// Returns the number of steps for each of options.jobs.
std::vector<std::int64_t> wanted_steps(const TrainOptions& options);

}  // namespace millrace
