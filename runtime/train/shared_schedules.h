// Schedules that ranks of one process share. A schedule has the lists of all ranks, so a thousand threads
// with their own schedules would use a thousand times its memory.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "runtime/schedule/schedule.h"
#include "runtime/schedule/schedule_stream.h"

namespace millrace {

/// The schedules shared by the ranks of one plan. Thread-safe.
class SharedSchedules {
 public:
  /// Returns the schedule of this turn; the first rank that requests it calls `make`. Rethrows exceptions of
  /// `make`.
  template <class Make>
  std::shared_ptr<const Schedule> steps(std::size_t turn, Make&& make) {
    const std::lock_guard lock(mutex_);
    auto& made = steps_[turn];
    if (!made) made = std::make_shared<const Schedule>(make());
    return made;
  }
  template <class Make>
  std::shared_ptr<const ScheduleStream> stream(Make&& make) {
    const std::lock_guard lock(mutex_);
    if (!stream_) stream_ = std::make_shared<const ScheduleStream>(make());
    return stream_;
  }

 private:
  std::mutex mutex_;                                              // guards the members below
  std::map<std::size_t, std::shared_ptr<const Schedule>> steps_;  // by turn
  std::shared_ptr<const ScheduleStream> stream_;
};

}  // namespace millrace
