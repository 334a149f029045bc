// Checkpoints of single jobs become one of a job array, and back: tensors "job<b>/NAME",
// "rule/STATE/job<b>/NAME".
#pragma once

#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"

namespace millrace {

/// Settings of the jobs of an array as those of the array: "0.1 | 0.2" where they differ; and back, without
/// "jobs", which says how many they are.
Settings joined_settings(const std::vector<Settings>& of_jobs);
std::vector<Settings> split_settings(const Settings& array, std::size_t jobs);

/// 1: it is of no array.
std::size_t jobs_in(const Checkpoint& checkpoint);

/// By job; one of a single job's.
std::vector<JobProgress> progress_of(const Checkpoint& checkpoint);
/// Whether the jobs that are listed, if any are, have come equally far.
bool at_one_step(const std::vector<JobProgress>& jobs);

/// A job of an opened checkpoint, which outlives it.
struct JobSource {
  const Checkpoint* checkpoint = nullptr;
  std::size_t job = 0;
};

struct JoinedCheckpoint {
  CheckpointInfo info;
  NamedTensors tensors;  ///< views of the files
};
/// A checkpoint of an array with `jobs` in this order, and after them `num_new` that have not begun; of a
/// single job if there is one. The array's step is that of the job which is farthest. Run and parent are the
/// caller's. Problems: other models or tensors; settings differ that cannot within an array; jobs at
/// different steps of an asynchronous schedule, or that carry states; no job has begun.
Result<JoinedCheckpoint> join_jobs(const std::vector<JobSource>& jobs, std::size_t num_new = 0);

}  // namespace millrace
