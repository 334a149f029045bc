// Saves checkpoints in a thread of its own, while the rank trains.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "runtime/base/clock.h"
#include "runtime/checkpoint/together.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/task_thread.h"

namespace millrace {

/// Runs one save at a time beside the caller. The savers of all ranks talk over a communicator of their own,
/// so that a save is as collective as in the caller's thread: complete on all ranks, or on none. The
/// destructor waits for the save. Not thread-safe.
class BackgroundSaver {
 public:
  using Save = std::function<std::optional<RankProblem>(Communicator& ranks)>;

  /// Collective over `world`. Both must outlive the object. A world has one such object at a time.
  BackgroundSaver(Communicator& world, Clock& clock);

  /// Starts a save: `copy`, then `save`. Collective: all ranks start the same saves in the same order. What
  /// `copy` reads must not change before copied() returns, what `save` reads not before finish() does.
  void start(std::function<void()> copy, Save save);
  /// Waits for the end of the newest `copy`, or throws what it threw.
  void copied();
  /// Waits for the save and returns what it returned, or throws what it threw. Each start() needs one.
  std::optional<RankProblem> finish();

 private:
  std::unique_ptr<Communicator> group_;  ///< null: this rank is alone
  Communicator& ranks_;
  std::optional<RankProblem> problem_;  ///< of the newest save; the thread's until it is done
  std::shared_ptr<TaskThread::Task> copy_, task_;
  TaskThread thread_;  ///< last: joined first
};

}  // namespace millrace
