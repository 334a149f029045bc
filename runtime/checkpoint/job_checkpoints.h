// Joins checkpoints of single jobs into one of a job array, and splits it again. Names are "job<b>/NAME" and
// "rule/STATE/job<b>/NAME".
#pragma once

#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"

namespace millrace {

/// joined_settings() joins the settings of jobs into those of an array, with "0.1 | 0.2" where they differ.
/// split_settings() goes back; it leaves out "jobs", the number of jobs.
Settings joined_settings(const std::vector<Settings>& of_jobs);
std::vector<Settings> split_settings(const Settings& array, std::size_t jobs);

/// Returns the number of jobs in a checkpoint; 1 if it is not of an array.
std::size_t jobs_in(const Checkpoint& checkpoint);

/// Returns a Problem if the checkpoint is of an array, with the way to take one job out. `path` is what the
/// user gave.
Status of_one_job(const Checkpoint& checkpoint, const std::string& path);

/// Returns the progress of each job; one entry for a single job.
std::vector<JobProgress> progress_of(const Checkpoint& checkpoint);
/// Tells whether the listed jobs have come equally far; true if none is listed.
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
/// Makes the checkpoint of an array that has `jobs` in this order, and after them `num_new` jobs that have
/// not begun. With one job it is that of a single job. The array's step is that of the job which has come
/// farthest. The caller sets run and parent.
/// Problems: models or tensors differ; settings differ that must be equal in an array; jobs are at different
/// steps of an asynchronous schedule, or of a model that carries states; no job has begun.
Result<JoinedCheckpoint> join_jobs(const std::vector<JobSource>& jobs, std::size_t num_new = 0);

}  // namespace millrace
