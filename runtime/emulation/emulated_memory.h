// The memory of an emulated device. Tensors of LibTorch's device "meta" use no host memory; here they count
// as device memory.
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
  /// A limit of 0: unlimited. `whose` is used in messages: " of rank 3"; it may be empty.
  explicit EmulatedMemory(std::int64_t limit, std::string whose = "")
      : limit_(limit), whose_(std::move(whose)) {}

  /// Throws OutOfMemory, with the sizes, if the limit would be exceeded.
  void take(std::int64_t bytes);
  void give_back(std::int64_t bytes);
  /// Takes bytes whose tensors the caller is about to free: they are checked from the next take() on.
  void take_soon(std::int64_t bytes);
  DeviceMemory now() const;
  void reset_peak();

  /// Makes tensors without values that this thread creates from now on count in `memory` until they are
  /// freed; null: they are not counted.
  static void count_tensors_of_thread(std::shared_ptr<EmulatedMemory> memory);

 private:
  const std::int64_t limit_;
  const std::string whose_;
  mutable std::mutex mutex_;  // guards the members below
  std::int64_t current_ = 0, soon_ = 0, peak_ = 0;
};

}  // namespace millrace
