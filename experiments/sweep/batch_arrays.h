// Runs of a sweep or a search as tasks of arrays in the queue of a cluster (driver/queues). Each task is
// `millrace launch` of one run, on the nodes or in the pod that the cluster gives it. The folder of the sweep
// must be there under the same path. LibTorch-free.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "driver/queues/engine.h"
#include "runtime/base/clock.h"

namespace millrace {

/// The engine in whose queue runs of this job wait; null: they start from here.
const Engine* queue_of(const JobSpec& job);

struct BatchRun {
  int id = 0;
  JobSpec job;
  std::vector<std::string> before{};  ///< a program and its arguments that must succeed first; empty: none
};

struct BatchEnd {
  int id = 0;
  int exit_code = 0;
  std::string error;  ///< its last words; empty: none
  double run_s = 0;   ///< from the start where it ran to the end, as seen from here
};

/// The tasks that this process has in a queue. The queue is asked every second. Not thread-safe.
class BatchArrays {
 public:
  /// `patience`: for runs that were cancelled at once to leave the queue.
  explicit BatchArrays(std::chrono::milliseconds patience = std::chrono::minutes(1)) : patience_(patience) {}
  BatchArrays(const BatchArrays&) = delete;
  BatchArrays& operator=(const BatchArrays&) = delete;
  /// Cancels what has not ended.
  ~BatchArrays();

  /// Submits the runs: one array for all that ask for the same, of at most 500 tasks. Throws ConfigError with
  /// what the queue's program says.
  void submit(const std::vector<BatchRun>& runs);
  std::size_t num_tasks() const { return tasks_.size(); }
  /// Returns the runs that have ended since the last call; asks at most once a second. Throws PeerError if
  /// the queue has said nothing of an array for two minutes, or still has runs that were cancelled.
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
  void submit_array(const Engine& engine, const std::vector<const BatchRun*>& runs);
  void ask(const std::string& array, std::vector<BatchEnd>& ended);
  BatchEnd end_of(const Task& task, const QueueRecord& record, const char* queue) const;

  std::map<Key, Task> tasks_;
  struct Array {
    const Engine* engine;
    std::string folder;  // of its first run
  };
  std::map<std::string, Array> arrays_;  // that have tasks
  std::map<std::string, int> silent_;    // answers that did not come, by array
  bool stopped_ = false;
  const std::chrono::milliseconds patience_;
  std::optional<TimePoint> gone_by_;  // when runs that were cancelled at once should have left the queue
  TimePoint ask_at_{};
};

}  // namespace millrace
