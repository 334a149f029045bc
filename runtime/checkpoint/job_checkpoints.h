// Joins checkpoints of single jobs into one of a job array, and splits it again. Names are "job<b>/NAME" and
// "rule/STATE/job<b>/NAME".
#pragma once

#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"

namespace millrace {

/// joined_settings() joins the settings of jobs into those of an array, with "0.1 | 0.2" where they differ.
/// split_settings() is the inverse, except that it drops "jobs", the number of jobs.
Settings joined_settings(const std::vector<Settings>& of_jobs);
std::vector<Settings> split_settings(const Settings& array, std::size_t jobs);

/// Returns the number of jobs in a checkpoint; 1 if it is not of an array.
std::size_t jobs_in(const Checkpoint& checkpoint);

/// Returns an error if the checkpoint is of an array, with a hint how to extract one job. `path` is the
/// user's path.
Status of_one_job(const Checkpoint& checkpoint, const std::string& path);

/// Returns the progress of each job; one entry for a single job.
std::vector<JobProgress> progress_of(const Checkpoint& checkpoint);
/// Returns whether the listed jobs are at the same step; true if none is listed.
bool at_one_step(const std::vector<JobProgress>& jobs);

/// A job of an opened checkpoint. The checkpoint must outlive it.
struct JobSource {
  const Checkpoint* checkpoint = nullptr;
  std::size_t job = 0;
};

struct JoinedCheckpoint {
  CheckpointInfo info;
  NamedTensors tensors;  ///< views of the files
};
/// Makes the checkpoint of an array with `jobs` in this order, followed by `num_new` jobs that have not
/// started. With one job it is that of a single job. The array's step is that of the most advanced job. The
/// caller sets run and parent.
/// Returns an error if models or tensors differ, or settings that must be equal in an array. Returns an error
/// if jobs are at different steps of an asynchronous schedule, or of a model that carries states, or if no
/// job has started.
Result<JoinedCheckpoint> join_jobs(const std::vector<JobSource>& jobs, std::size_t num_new = 0);

}  // namespace millrace
