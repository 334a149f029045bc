// The schedule of a device that several jobs or ranks share. They are processes of one host, or threads of
// one process.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/result.h"

namespace millrace {

/// The end of all issued work, in a file that all users map or, within one process, in its memory. Work runs
/// in issue order across all users. Thread-safe, and safe between processes.
class SharedTimeline {
 public:
  /// Opens or creates the file. State from an earlier boot is discarded. Returns an error if the file cannot
  /// be created.
  static Result<std::shared_ptr<SharedTimeline>> open(const std::string& path, TimePoint now);
  static std::shared_ptr<SharedTimeline> of_this_process();
  ~SharedTimeline();
  SharedTimeline(const SharedTimeline&) = delete;
  SharedTimeline& operator=(const SharedTimeline&) = delete;

  /// Appends work of `length` that starts at `earliest` or later. Returns its end.
  TimePoint append(TimePoint earliest, TimePoint::duration length);

 private:
  explicit SharedTimeline(void* mapped) : mapped_(mapped) {}
  std::atomic_ref<TimePoint::rep> free_at();

  void* mapped_;  // null: used within this process only
  alignas(8) TimePoint::rep own_ = 0;
};

}  // namespace millrace
