// A thread that runs tasks one after the other beside the caller.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "runtime/base/clock.h"

namespace millrace {

/// Runs tasks in the order of start(). All waits, also those of the tasks, are by the clock. The destructor
/// waits for the running task and drops those behind it. Thread-safe.
class TaskThread {
 public:
  struct Task {
    std::function<void()> work;
    bool done = false;  ///< guarded by the TaskThread, as is `error`
    std::exception_ptr error;
  };

  /// `clock` must outlive the object.
  explicit TaskThread(Clock& clock);
  ~TaskThread();
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  std::shared_ptr<Task> start(std::function<void()> work);
  /// Waits for the task's end. Throws what the task threw.
  void wait(Task& task);

 private:
  void run();

  Clock& clock_;
  std::mutex mutex_;  // guards what follows, and each Task's done, error
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Task>> tasks_;
  bool running_ = false, stopped_ = false;
  std::jthread thread_;  // last: joined first
};

}  // namespace millrace
