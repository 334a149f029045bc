#include "runtime/base/clock.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace millrace {

TimePoint SteadyClock::now() const {
  return std::chrono::steady_clock::now();
}

void SteadyClock::sleep_until(TimePoint when) {
  std::this_thread::sleep_until(when);
}

bool SteadyClock::wait_until(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
                             TimePoint until, const std::function<bool()>& ready) {
  if (until != TimePoint::max()) return changed.wait_until(lock, until, ready);
  changed.wait(lock, ready);
  return true;
}

SteadyClock& steady_clock() {
  static SteadyClock clock;
  return clock;
}

namespace {
// The virtual clock of which this thread is a user; a thread uses at most one.
thread_local const VirtualClock* used_here = nullptr;
}  // namespace

/// A waiting thread. Guarded by the clock's mutex, except for `awake`.
struct VirtualClock::Waiter {
  TimePoint until;
  const std::condition_variable* changed = nullptr;  ///< null: the thread sleeps
  const std::function<bool()>* ready = nullptr;      ///< the condition of `changed`
  bool is_user = false;
  Deadlines::iterator deadline{};    ///< unless `until` is TimePoint::max()
  Conditions::iterator condition{};  ///< unless the thread sleeps
  // A separate mutex: a thread that wakes up does not contend for the clock's mutex.
  std::mutex mutex{};
  bool awake = false;  ///< guarded by `mutex`
  std::condition_variable wake{};
};

void VirtualClock::enter() {
  std::lock_guard lock(mutex_);
  used_here = this;
  ++running_;
}

void VirtualClock::leave() {
  std::lock_guard lock(mutex_);
  used_here = nullptr;
  --running_;
  move_if_all_wait();
}

void VirtualClock::sleep_until(TimePoint when) {
  std::unique_lock lock(mutex_);
  Waiter waiter{.until = when, .is_user = used_here == this};
  if (when > now()) wait(lock, waiter);
}

bool VirtualClock::wait_until(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
                              TimePoint until, const std::function<bool()>& ready) {
  while (!ready()) {
    std::unique_lock mine(mutex_);
    if (now() >= until) return false;
    Waiter waiter{.until = until, .changed = &changed, .ready = &ready, .is_user = used_here == this};
    // A thread that makes `ready` true holds the caller's mutex, and then finds the waiter in the list.
    lock.unlock();
    wait(mine, waiter);
    lock.lock();
  }
  return true;
}

/// Wakes only the waiters that are ready: a thread that would wait again costs two context switches.
void VirtualClock::notify_all(std::condition_variable& changed) {
  std::lock_guard lock(mutex_);
  const auto [first, last] = conditions_.equal_range(&changed);
  for (auto it = first; it != last;)
    if (Waiter& waiter = *(it++)->second; (*waiter.ready)()) rouse(waiter);
}

void VirtualClock::advance(std::chrono::nanoseconds by) {
  std::lock_guard lock(mutex_);
  move_to(now() + by);
}

/// Waits until a thread, possibly this one, rouses the waiter. Unlocks `lock`, which holds the clock's mutex.
void VirtualClock::wait(std::unique_lock<std::mutex>& lock, Waiter& waiter) {
  if (waiter.until != TimePoint::max()) waiter.deadline = deadlines_.emplace(waiter.until, &waiter);
  if (waiter.changed) waiter.condition = conditions_.emplace(waiter.changed, &waiter);
  running_ -= waiter.is_user;
  move_if_all_wait();
  lock.unlock();
  {
    std::unique_lock own(waiter.mutex);
    waiter.wake.wait(own, [&] { return waiter.awake; });
  }
  if (waiter.is_user) return;
  lock.lock();
  --roused_others_;
  lock.unlock();
}

/// Wakes a waiter. The waiter counts as running from this call on, not from when its thread is scheduled.
void VirtualClock::rouse(Waiter& waiter) {
  if (waiter.until != TimePoint::max()) deadlines_.erase(waiter.deadline);
  if (waiter.changed) conditions_.erase(waiter.condition);
  ++(waiter.is_user ? running_ : roused_others_);
  const std::lock_guard own(waiter.mutex);
  waiter.awake = true;
  waiter.wake.notify_one();
}

void VirtualClock::move_to(TimePoint when) {
  now_ = when;
  while (!deadlines_.empty() && deadlines_.begin()->first <= when) rouse(*deadlines_.begin()->second);
}

void VirtualClock::move_if_all_wait() {
  if (running_ > 0 || roused_others_ > 0) return;
  if (deadlines_.empty()) return;  // only an outside event can make progress
  move_to(std::max(now(), deadlines_.begin()->first));
}

}  // namespace millrace
