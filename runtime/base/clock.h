// Time is handed in: code that measures or waits takes a Clock&, so that it runs real and emulated.
#pragma once

#include <chrono>
#include <mutex>

namespace millrace {

using TimePoint = std::chrono::time_point<std::chrono::steady_clock, std::chrono::nanoseconds>;

/// Monotonic time. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
  virtual void sleep_until(TimePoint when) = 0;
};

/// The host's monotonic clock.
class SteadyClock final : public Clock {
 public:
  TimePoint now() const override;
  void sleep_until(TimePoint when) override;
};

/// Time that moves only when somebody sleeps or advances it. One virtual time line for all its users.
class VirtualClock final : public Clock {
 public:
  TimePoint now() const override;
  void sleep_until(TimePoint when) override;  ///< moves `now` to `when` at once if that is later
  void advance(std::chrono::nanoseconds by);

 private:
  mutable std::mutex mutex_;  // guards now_
  TimePoint now_{};
};

}  // namespace millrace
