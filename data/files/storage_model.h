// A storage device with a known latency, bandwidth and queue depth: reads wait as long as the device would
// take.
#pragma once

#include <chrono>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/units.h"

namespace millrace {

struct StorageSpec {
  std::string name;        ///< of the preset, or the text that was given
  double latency_s = 0;    ///< of one request
  double bytes_per_s = 0;  ///< of all requests together
  int queue_depth = 1;     ///< requests that are served at once
  bool is_real = false;    ///< this machine's disk: nothing waits, and a miss is read from the device

  /// Seconds for one request of `size` bytes if no other waits.
  double seconds(Bytes size) const { return latency_s + static_cast<double>(size) / bytes_per_s; }
};

/// When requests end. Each waits for a place in the queue, then for its latency; then its bytes pass through
/// the device's one pipe, in the order of arrival. Thread-safe.
class StorageModel {
 public:
  explicit StorageModel(StorageSpec spec);
  /// When a request for `size` bytes that arrives at `now` has been served. The caller waits until then.
  TimePoint served_at(TimePoint now, Bytes size);

 private:
  StorageSpec spec_;
  std::mutex mutex_;
  std::vector<TimePoint> place_free_;  // guarded by mutex_
  TimePoint pipe_free_{};              // guarded by mutex_
};

}  // namespace millrace
