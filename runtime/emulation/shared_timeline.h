// When a device that several jobs share is free. The jobs are processes of one host.
#pragma once

#include <memory>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/result.h"

namespace millrace {

/// The end of all work that the jobs have handed over, in a file that they map. Work is done in the order in
/// which it is handed over, whichever job it is of. Thread-safe, and safe between processes.
class SharedTimeline {
 public:
  /// Opens or makes the file. What an earlier boot left there is forgotten. Problem: it cannot be made.
  static Result<std::shared_ptr<SharedTimeline>> open(const std::string& path, TimePoint now);
  ~SharedTimeline();
  SharedTimeline(const SharedTimeline&) = delete;
  SharedTimeline& operator=(const SharedTimeline&) = delete;

  /// Appends work of `length` that begins at `earliest` or later. Returns when it is done.
  TimePoint append(TimePoint earliest, TimePoint::duration length);

 private:
  explicit SharedTimeline(void* mapped) : mapped_(mapped) {}
  void* mapped_;
};

}  // namespace millrace
