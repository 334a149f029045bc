// When a device that several jobs or ranks share is free. They are processes of one host, or threads of one.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/result.h"

namespace millrace {

/// The end of all work that they have handed over, in a file that they map or, in one process, in its memory.
/// Work is done in the order in which it is handed over, whoever hands it over. Thread-safe, and safe between
/// processes.
class SharedTimeline {
 public:
  /// Opens or makes the file. What an earlier boot left there is forgotten. Problem: it cannot be made.
  static Result<std::shared_ptr<SharedTimeline>> open(const std::string& path, TimePoint now);
  static std::shared_ptr<SharedTimeline> of_this_process();
  ~SharedTimeline();
  SharedTimeline(const SharedTimeline&) = delete;
  SharedTimeline& operator=(const SharedTimeline&) = delete;

  /// Appends work of `length` that begins at `earliest` or later. Returns when it is done.
  TimePoint append(TimePoint earliest, TimePoint::duration length);

 private:
  explicit SharedTimeline(void* mapped) : mapped_(mapped) {}
  std::atomic_ref<TimePoint::rep> free_at();

  void* mapped_;  // null: of this process
  alignas(8) TimePoint::rep own_ = 0;
};

}  // namespace millrace
