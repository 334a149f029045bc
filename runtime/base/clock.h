// Time is handed in: code that measures or waits takes a Clock&, so that it runs real and emulated.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

namespace millrace {

using TimePoint = std::chrono::time_point<std::chrono::steady_clock, std::chrono::nanoseconds>;

/// Monotonic time, and waiting in it. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
  virtual void sleep_until(TimePoint when) = 0;
  /// Waits as changed.wait_until(lock, until, ready) does. False: `until` came first. `ready` is called
  /// with `lock` held. The thread that makes it true holds the same mutex and then calls notify_all of this
  /// clock. TimePoint::max(): never.
  virtual bool wait_until(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
                          TimePoint until, const std::function<bool()>& ready) = 0;
  virtual void notify_all(std::condition_variable& changed) = 0;

 private:
  friend class ClockUser;
  virtual void enter() {}
  virtual void leave() {}
};

/// While it lives, its thread is one whose work takes no time of a virtual clock. Every thread that waits in
/// one has it; it is made and destroyed by that thread. Nothing on other clocks.
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

/// One for all: it has no state.
SteadyClock& steady_clock();

/// Time that moves only when all its users (ClockUser) wait: then at once to the first moment that one of
/// them waits for. One time line for any number of threads; with none, who sleeps moves it.
class VirtualClock final : public Clock {
 public:
  TimePoint now() const override;
  void sleep_until(TimePoint when) override;
  bool wait_until(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, TimePoint until,
                  const std::function<bool()>& ready) override;
  void notify_all(std::condition_variable& changed) override;
  void advance(std::chrono::nanoseconds by);

 private:
  struct Waiter {
    TimePoint until;
    const std::condition_variable* changed = nullptr;  ///< null: it sleeps
    bool is_user = false;
    bool awake = false;
    std::condition_variable wake{};
  };
  void enter() override;
  void leave() override;
  void wait(std::unique_lock<std::mutex>& lock, Waiter& waiter);
  void rouse(Waiter& waiter);
  void move_if_all_wait();

  mutable std::mutex mutex_;  // guards what follows
  TimePoint now_{};
  int running_ = 0;  // users that do not wait
  std::vector<Waiter*> waiters_;
};

}  // namespace millrace
