// The time that threads spend in file reads.
#pragma once

#include <chrono>

namespace millrace {

/// The time that this thread has spent in file reads so far. Page faults of mapped files are not included,
/// unless the code that maps them counts them (BERT's records do).
inline std::chrono::nanoseconds& read_time_of_thread() {
  thread_local std::chrono::nanoseconds time{0};
  return time;
}

/// Counts its own lifetime as a read.
class CountedRead {
 public:
  CountedRead() : begin_(std::chrono::steady_clock::now()) {}
  ~CountedRead() { read_time_of_thread() += std::chrono::steady_clock::now() - begin_; }
  CountedRead(const CountedRead&) = delete;
  CountedRead& operator=(const CountedRead&) = delete;

 private:
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace millrace
