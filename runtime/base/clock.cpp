#include "runtime/base/clock.h"

#include <algorithm>
#include <thread>

namespace millrace {

TimePoint SteadyClock::now() const {
  return std::chrono::steady_clock::now();
}
void SteadyClock::sleep_until(TimePoint when) {
  std::this_thread::sleep_until(when);
}

TimePoint VirtualClock::now() const {
  std::lock_guard lock(mutex_);
  return now_;
}

void VirtualClock::sleep_until(TimePoint when) {
  std::lock_guard lock(mutex_);
  now_ = std::max(now_, when);
}

void VirtualClock::advance(std::chrono::nanoseconds by) {
  std::lock_guard lock(mutex_);
  now_ += by;
}

}  // namespace millrace
