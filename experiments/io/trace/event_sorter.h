// Sorts any number of events in bounded memory: sorted runs on disk, merged at the end.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <future>
#include <vector>

namespace millrace {

/// One call as the timeline has it. Times in nanoseconds since 1970.
struct TraceEvent {
  std::int64_t start = 0;
  std::int64_t end = 0;
  std::uint32_t pid = 0;
  std::uint8_t type = 0;  ///< EventType
  bool flusher = false;   ///< written back by the kernel: its PID is nobody's
};

/// (start, end, type): the order of the rows as text. PIDs make it total.
bool operator<(const TraceEvent& a, const TraceEvent& b);

/// Holds at most two runs in memory. Not thread-safe; one thread of its own sorts and writes a full run.
class EventSorter {
 public:
  /// `folder` exists; files in it are named run.0, run.1, ... and removed by the destructor.
  explicit EventSorter(std::filesystem::path folder, std::size_t run_events = std::size_t{1} << 20);
  ~EventSorter();
  EventSorter(const EventSorter&) = delete;
  EventSorter& operator=(const EventSorter&) = delete;

  void add(const std::vector<TraceEvent>& events);
  std::int64_t size() const { return size_; }
  /// Calls `take` for all events in order. Throws DataError when the disk fails. Ends the sorter.
  void merge(const std::function<void(const TraceEvent&)>& take);

 private:
  void spill();
  void wait();

  std::filesystem::path folder_;
  std::size_t run_events_;
  std::vector<TraceEvent> buffer_;
  std::vector<TraceEvent> spilling_;
  std::future<void> spill_;
  std::size_t runs_ = 0;
  std::int64_t size_ = 0;
};

}  // namespace millrace
