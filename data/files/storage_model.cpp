#include "data/files/storage_model.h"

#include <algorithm>
#include <utility>

namespace millrace {

StorageModel::StorageModel(StorageSpec spec)
    : spec_(std::move(spec)), place_free_(static_cast<std::size_t>(std::max(1, spec_.queue_depth))) {}

TimePoint StorageModel::served_at(TimePoint now, Bytes size) {
  const auto time = [](double seconds) {
    return std::chrono::duration_cast<TimePoint::duration>(std::chrono::duration<double>(seconds));
  };
  const std::lock_guard lock(mutex_);
  const auto place = std::min_element(place_free_.begin(), place_free_.end());
  const TimePoint found = std::max(now, *place) + time(spec_.latency_s);
  pipe_free_ = std::max(found, pipe_free_) + time(static_cast<double>(size) / spec_.bytes_per_s);
  return *place = pipe_free_;
}

}  // namespace millrace
