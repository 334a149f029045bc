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

/// Returns `seconds` as a duration of clocks, cut off to whole nanoseconds.
constexpr TimePoint::duration duration_of(double seconds) {
  return std::chrono::duration_cast<TimePoint::duration>(std::chrono::duration<double>(seconds));
}

/// Monotonic time, and waiting in it. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
  virtual void sleep_until(TimePoint when) = 0;
  /// Waits like changed.wait_until(lock, until, ready), and returns false if `until` came first. `ready` is
  /// called with the mutex of `lock` held, by this thread or by one that notifies; it must not use the clock.
  /// A thread that makes `ready` true must hold that mutex until it has called notify_all of this clock. With
  /// TimePoint::max() the wait has no end of its own.
  virtual bool wait_until(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
                          TimePoint until, const std::function<bool()>& ready) = 0;
  virtual void notify_all(std::condition_variable& changed) = 0;

 private:
  friend class ClockUser;
  virtual void enter() {}
  virtual void leave() {}
};

/// Registers the thread that makes it as a user of a VirtualClock while it lives: the clock stands still
/// while a user works. Every thread that waits in a VirtualClock needs one, and destroys it itself. A
/// ClockUser does nothing on other clocks.
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

/// Virtual time: it moves only when all users (ClockUser) wait. It then jumps to the earliest moment that one
/// of them waits for. All threads share one time line. While there are no users, a thread that sleeps moves
/// the time.
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

  std::mutex mutex_;  // guards what follows; `now_` is read without it
  std::atomic<TimePoint> now_{TimePoint{}};
  int running_ = 0;        // users that do not wait
  int roused_others_ = 0;  // waiters that are no users, from rouse() to the end of their wait
  // The waiters that nobody has roused yet: those with a deadline, and those of a condition.
  Deadlines deadlines_;
  Conditions conditions_;
};

}  // namespace millrace
