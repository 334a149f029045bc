// Clocks. Code that measures or waits takes a Clock&, so that it runs in real and in virtual time.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <unordered_map>

namespace millrace {

using TimePoint = std::chrono::time_point<std::chrono::steady_clock, std::chrono::nanoseconds>;

/// Returns `seconds` as a clock duration, truncated to whole nanoseconds.
constexpr TimePoint::duration duration_of(double seconds) {
  return std::chrono::duration_cast<TimePoint::duration>(std::chrono::duration<double>(seconds));
}

/// Monotonic time and timed waits. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
  virtual void sleep_until(TimePoint when) = 0;
  /// Waits like changed.wait_until(lock, until, ready), and returns false if `until` passed first. `ready` is
  /// called with the mutex of `lock` held, by this thread or by a notifying one; it must not use the clock. A
  /// thread that makes `ready` true must hold that mutex until it has called this clock's notify_all. With
  /// TimePoint::max() the wait has no deadline.
  virtual bool wait_until(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
                          TimePoint until, const std::function<bool()>& ready) = 0;
  virtual void notify_all(std::condition_variable& changed) = 0;

 private:
  friend class ClockUser;
  virtual void enter() {}
  virtual void leave() {}
};

/// Registers the calling thread as a user of a VirtualClock for the object's lifetime: the clock does not
/// advance while a user runs. Every thread that waits on a VirtualClock needs one, and destroys it itself. On
/// other clocks a ClockUser does nothing.
class ClockUser {
 public:
  explicit ClockUser(Clock& clock) : clock_(clock) { clock_.enter(); }
  ~ClockUser() { clock_.leave(); }
  ClockUser(const ClockUser&) = delete;
  ClockUser& operator=(const ClockUser&) = delete;

 private:
  Clock& clock_;
};

/// The host's monotonic clock.
class SteadyClock final : public Clock {
 public:
  TimePoint now() const override;
  void sleep_until(TimePoint when) override;
  bool wait_until(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, TimePoint until,
                  const std::function<bool()>& ready) override;
  void notify_all(std::condition_variable& changed) override { changed.notify_all(); }
};

/// Returns the one SteadyClock of the process. It has no state.
SteadyClock& steady_clock();

/// Virtual time: it advances only when all users (ClockUser) wait. It then jumps to the earliest deadline
/// among them. All threads share one timeline. While there are no users, a sleeping thread advances the time.
class VirtualClock final : public Clock {
 public:
  TimePoint now() const override { return now_; }
  void sleep_until(TimePoint when) override;
  bool wait_until(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, TimePoint until,
                  const std::function<bool()>& ready) override;
  void notify_all(std::condition_variable& changed) override;
  void advance(std::chrono::nanoseconds by);

 private:
  struct Waiter;
  using Deadlines = std::multimap<TimePoint, Waiter*>;
  using Conditions = std::unordered_multimap<const std::condition_variable*, Waiter*>;
  void enter() override;
  void leave() override;
  void wait(std::unique_lock<std::mutex>& lock, Waiter& waiter);
  void rouse(Waiter& waiter);
  void move_to(TimePoint when);
  void move_if_all_wait();

  std::mutex mutex_;  // guards the members below; `now_` is read without it
  std::atomic<TimePoint> now_{TimePoint{}};
  int running_ = 0;        // users that are not waiting
  int roused_others_ = 0;  // waiters without a ClockUser, from rouse() to the end of their wait
  // Waiters that have not been roused: those with a deadline, and those on a condition.
  Deadlines deadlines_;
  Conditions conditions_;
};

}  // namespace millrace
