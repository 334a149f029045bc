// Counts the steps of each job of a run. LibTorch-free.
// Jobs of one run may have begun at different steps of it, and may end at different ones: an array can be put
// together from checkpoints of jobs, and each job has a number of steps of its own.
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
  /// `wanted` has the number of own steps that each job shall do. With `end_together` no job ends before the
  /// run does (asynchronous schedules).
  JobSteps(std::vector<std::int64_t> wanted, bool end_together);

  /// Tells that the run resumes after `start` steps, with jobs that have done `own` steps each. If the run
  /// has several jobs, a job that has done all its steps has ended. Its joined() becomes that of the first
  /// job of its array that goes on, because both read the same microbatches. `arrays` has the number of jobs
  /// of each array, in order.
  void resume(std::int64_t start, std::span<const std::int64_t> own, std::span<const int> arrays);

  std::size_t size() const { return joined_.size(); }
  std::int64_t wanted(std::size_t job) const { return wanted_[job]; }
  std::int64_t joined(std::size_t job) const { return joined_[job]; }
  /// Returns the own steps that the job has done after `step` steps of the run.
  std::int64_t own(std::size_t job, std::int64_t step) const;
  bool ended_before_run(std::size_t job) const { return ended_with_[job].has_value(); }
  bool has_ended(std::size_t job, std::int64_t step) const;
  /// Returns for each job whether it has ended after `step` steps. The vector is empty if no job has ended.
  std::vector<char> ended_at(std::int64_t step) const;
  /// Returns the number of steps of the run after which `job` has done its own.
  std::int64_t end(std::size_t job) const { return joined_[job] + wanted_[job]; }
  /// Returns the number of steps of the run after which every job has done its own. Jobs that ended before
  /// this run do not count.
  std::int64_t last() const;
  /// Tells whether some job's own steps differ from the run's.
  bool apart() const;
  /// Tells whether the jobs have different numbers of steps to do.
  bool end_apart() const;

 private:
  std::vector<std::int64_t> wanted_, joined_;
  /// by job: its own steps if it ended before this run
  std::vector<std::optional<std::int64_t>> ended_with_;
  bool end_together_;
  std::int64_t start_ = 0;
};

/// Returns the number of steps that each of options.jobs shall do.
std::vector<std::int64_t> wanted_steps(const TrainOptions& options);

}  // namespace millrace
