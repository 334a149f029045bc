#include "runtime/comm/task_thread.h"

#include <ATen/core/grad_mode.h>

#include <utility>

namespace millrace {

TaskThread::TaskThread(Clock& clock) : clock_(clock), thread_([this] { run(); }) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return running_; });  // its user of the clock is there before anybody waits
}

TaskThread::~TaskThread() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  clock_.notify_all(changed_);
}

std::shared_ptr<TaskThread::Task> TaskThread::start(std::function<void()> work) {
  auto task = std::make_shared<Task>(Task{.work = std::move(work)});
  std::lock_guard lock(mutex_);
  tasks_.push_back(task);
  clock_.notify_all(changed_);
  return task;
}

void TaskThread::wait(Task& task) {
  std::unique_lock lock(mutex_);
  clock_.wait_until(lock, changed_, TimePoint::max(), [&] { return task.done; });
  if (task.error) std::rethrow_exception(task.error);
}

void TaskThread::run() {
  at::NoGradGuard no_grad;
  const ClockUser user(clock_);
  std::unique_lock lock(mutex_);
  running_ = true;
  changed_.notify_all();
  for (;;) {
    clock_.wait_until(lock, changed_, TimePoint::max(), [&] { return stopped_ || !tasks_.empty(); });
    if (stopped_) return;
    auto task = tasks_.front();
    tasks_.pop_front();
    lock.unlock();
    try {
      task->work();
    } catch (...) {
      task->error = std::current_exception();
    }
    lock.lock();
    task->done = true;
    clock_.notify_all(changed_);
  }
}

}  // namespace millrace
