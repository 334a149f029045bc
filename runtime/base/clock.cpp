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
// The virtual clock that this thread is a user of. A thread is in one at most.
thread_local const VirtualClock* used_here = nullptr;
}  // namespace

TimePoint VirtualClock::now() const {
  std::lock_guard lock(mutex_);
  return now_;
}

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
  if (when > now_) wait(lock, waiter);
}

bool VirtualClock::wait_until(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
                              TimePoint until, const std::function<bool()>& ready) {
  while (!ready()) {
    std::unique_lock mine(mutex_);
    if (now_ >= until) return false;
    Waiter waiter{.until = until, .changed = &changed, .is_user = used_here == this};
    // A thread that makes `ready` true holds the caller's mutex, and then finds the waiter in the list.
    lock.unlock();
    wait(mine, waiter);
    mine.unlock();
    lock.lock();
  }
  return true;
}

void VirtualClock::notify_all(std::condition_variable& changed) {
  std::lock_guard lock(mutex_);
  for (Waiter* waiter : waiters_) {
    if (waiter->changed == &changed) rouse(*waiter);
  }
}

void VirtualClock::advance(std::chrono::nanoseconds by) {
  std::lock_guard lock(mutex_);
  now_ += by;
  for (Waiter* waiter : waiters_) {
    if (waiter->until <= now_) rouse(*waiter);
  }
}

/// Until somebody rouses the waiter. `lock` is of this clock's mutex.
void VirtualClock::wait(std::unique_lock<std::mutex>& lock, Waiter& waiter) {
  waiters_.push_back(&waiter);
  running_ -= waiter.is_user;
  move_if_all_wait();
  waiter.wake.wait(lock, [&] { return waiter.awake; });
  std::erase(waiters_, &waiter);
}

/// Wakes a waiter. The waiter counts as running from now on, not from when its thread gets a processor.
void VirtualClock::rouse(Waiter& waiter) {
  if (waiter.awake) return;
  waiter.awake = true;
  running_ += waiter.is_user;
  waiter.wake.notify_one();
}

void VirtualClock::move_if_all_wait() {
  if (running_ > 0) return;
  TimePoint next = TimePoint::max();
  for (const Waiter* waiter : waiters_) {
    if (waiter->awake) return;
    next = std::min(next, waiter->until);
  }
  if (next == TimePoint::max()) return;  // somebody from outside has to do something
  now_ = std::max(now_, next);
  for (Waiter* waiter : waiters_) {
    if (waiter->until <= now_) rouse(*waiter);
  }
}

}  // namespace millrace
