// The CPU time used by a thread or a process.
#pragma once

#include <time.h>

#include <chrono>

namespace millrace {

/// Returns the time that `clock` has counted so far: CLOCK_THREAD_CPUTIME_ID for the calling thread, or
/// CLOCK_PROCESS_CPUTIME_ID for all threads of the process.
inline std::chrono::nanoseconds cpu_time(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace millrace
