// The queues of clusters that take the runs of a sweep: one row for Slurm, one for Kubernetes. LibTorch-free.
#pragma once

#include <string>
#include <vector>

#include "driver/launch/job_spec.h"
#include "runtime/base/result.h"

namespace millrace {

/// What a queue says of one task of an array.
struct TaskRecord {
  int task = 0;
  bool is_running = false, is_over = false;
  int exit_code = 0;   ///< 128 + n for signal n; of a task that is over
  std::string reason;  ///< why the queue ended it: "TIMEOUT", "Evicted"; empty: it ended itself
};

struct BatchQueue {
  const char* engine;  ///< `on` of the job
  const char* name;    ///< for messages
  /// Whether runs of this job wait in this queue; else they start at once.
  bool (*takes)(const JobSpec& job);
  /// Problem: what the job lacks for this queue.
  Status (*check)(const JobSpec& job);
  /// What the runs of one array must have in common.
  std::string (*requests)(const JobSpec& job);
  const char* task_variable;  ///< of the environment: the task's number
  /// The command of a run, in front of the job's file.
  std::vector<std::string> (*launch)();
  const char* launch_on;  ///< `--on` of that command
  /// Submits an array of `tasks` tasks that run `script`, for jobs like `job`, with a file of its own in
  /// `folder`. Returns its name in the queue.
  Result<std::string> (*submit)(const JobSpec& job, int tasks, const std::string& script,
                                const std::string& folder);
  /// Tasks that are not mentioned wait, or are gone after a stop.
  Result<std::vector<TaskRecord>> (*ask)(const std::string& array);
  /// Tells all tasks to save and end; `at_once`: cancels them.
  void (*stop)(const std::string& array, bool at_once);
  /// After the last task has ended.
  void (*clean_up)(const std::string& array);
};

/// The queue of this job's runs; null: they start from here.
const BatchQueue* queue_of(const JobSpec& job);

}  // namespace millrace
