// Saves checkpoints in a separate thread during training.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "runtime/base/clock.h"
#include "runtime/checkpoint/together.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/task_thread.h"

namespace millrace {

/// Runs one save at a time in the background. The savers of all ranks use their own communicator, so that a
/// save is as collective as in the caller's thread: complete on all ranks, or on none. The destructor waits
/// for the save. Not thread-safe.
class BackgroundSaver {
 public:
  using Save = std::function<std::optional<RankProblem>(Communicator& ranks)>;

  /// Collective over `world`. Both must outlive the object. A world has one such object at a time.
  BackgroundSaver(Communicator& world, Clock& clock);

  /// Starts a save: `copy`, then `save`. Collective: all ranks start the same saves in the same order. Data
  /// that `copy` reads must not change before copied() returns, and data that `save` reads not before
  /// finish() returns.
  void start(std::function<void()> copy, Save save);
  /// Waits for the end of the newest `copy`, or rethrows its exception.
  void copied();
  /// Waits for the save and returns its result, or rethrows its exception. Must be called once after each
  /// start().
  std::optional<RankProblem> finish();

 private:
  std::unique_ptr<Communicator> group_;  ///< null: this rank is alone
  Communicator& ranks_;
  /// the result of the newest save; the thread owns it until it is done
  std::optional<RankProblem> problem_;
  std::shared_ptr<TaskThread::Task> copy_, task_;
  TaskThread thread_;  ///< declared last: joined first
};

}  // namespace millrace
