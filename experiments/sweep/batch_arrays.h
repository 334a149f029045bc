// Runs of a sweep or a search as tasks of Slurm's job arrays. Each task is `millrace launch` of one run
// inside an allocation of its own. The folder of the sweep must be on all nodes. LibTorch-free.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "driver/launch/job_spec.h"
#include "runtime/base/clock.h"

namespace millrace {

/// Whether the runs of this job go into Slurm's queue: its engine is Slurm, and this process is in no
/// allocation.
bool runs_in_batch_arrays(const JobSpec& job);

struct BatchRun {
  int id = 0;
  JobSpec job;
  std::vector<std::string> before{};  ///< a program and its arguments that must succeed first; empty: none
};

struct BatchEnd {
  int id = 0;
  int exit_code = 0;
  std::string error;  ///< its last words; empty: none
  double run_s = 0;   ///< from the start on its nodes to the end, as seen from here
};

/// The tasks that this process has in the queue. Slurm is asked every second. Not thread-safe.
class BatchArrays {
 public:
  BatchArrays() = default;
  BatchArrays(const BatchArrays&) = delete;
  BatchArrays& operator=(const BatchArrays&) = delete;
  /// Cancels what has not ended.
  ~BatchArrays();

  /// Submits the runs: one array for all that ask Slurm for the same, of at most a thousand tasks. Throws
  /// ConfigError with what sbatch says.
  void submit(const std::vector<BatchRun>& runs);
  std::size_t num_tasks() const { return tasks_.size(); }
  /// Returns the runs that have ended since the last call; at most once a second Slurm is asked. Throws
  /// PeerError if Slurm has said nothing of an array for two minutes.
  std::vector<BatchEnd> ended();
  /// Tells the runs to save and end, and takes those that wait out of the queue; `at_once`: cancels all.
  void stop(bool at_once);

 private:
  struct Task {
    int id = 0;
    std::string folder;
    std::optional<TimePoint> started;
  };
  using Key = std::pair<std::string, int>;  // array, task
  void submit_array(const std::vector<const BatchRun*>& runs);
  void ask(const std::string& array, std::vector<BatchEnd>& ended);

  std::map<Key, Task> tasks_;
  std::map<std::string, int> silent_;  // answers that did not come, by array
  TimePoint ask_at_{};
};

}  // namespace millrace
