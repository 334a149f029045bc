// The memory of a device that is not there. Tensors of LibTorch's device "meta" take no memory of the host;
// here they count as if they took the device's.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "runtime/device/device.h"

namespace millrace {

/// Counts bytes against a limit. Thread-safe.
class EmulatedMemory {
 public:
  /// A limit of 0: unlimited. `whose` stands in messages: " of rank 3"; it may be empty.
  explicit EmulatedMemory(std::int64_t limit, std::string whose = "")
      : limit_(limit), whose_(std::move(whose)) {}

  /// Throws OutOfMemory, with the sizes, where there is no room.
  void take(std::int64_t bytes);
  void give_back(std::int64_t bytes);
  /// Takes bytes whose tensors the caller is about to free: they count from the next take() on.
  void take_soon(std::int64_t bytes);
  DeviceMemory now() const;
  void reset_peak();

  /// Lets tensors without values that this thread makes from now on count in `memory` until they are freed;
  /// null: in none.
  static void count_tensors_of_thread(std::shared_ptr<EmulatedMemory> memory);

 private:
  const std::int64_t limit_;
  const std::string whose_;
  mutable std::mutex mutex_;  // guards what follows
  std::int64_t current_ = 0, soon_ = 0, peak_ = 0;
};

}  // namespace millrace
