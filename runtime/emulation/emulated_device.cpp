#include "runtime/emulation/emulated_device.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/units.h"

namespace millrace {

namespace {

thread_local EmulatedDevice* bound = nullptr;

/// The time slice of a shared device, assigned round-robin to its users. Linux gives a busy process a core
/// for about as long.
constexpr std::chrono::milliseconds kSlice{3};

/// The most that a host's own work between two waits can delay it: two slices, in which others use its core.
/// A host slower than its device never waits for it; its work counts from then on.
constexpr std::chrono::milliseconds kMostBehind = 2 * kSlice;

}  // namespace

class EmulatedMark final : public DeviceMark {
 public:
  EmulatedMark(EmulatedDevice& device, TimePoint at) : device_(device), at_(at) {}
  void wait() override { device_.wait_until(at_); }
  // The runner queries after every action. It reads all times once per step, as on a GPU.
  bool is_reached() const override { return false; }
  double seconds_since(const DeviceMark& earlier) const override {
    return Seconds(at_ - static_cast<const EmulatedMark&>(earlier).at_).count();
  }

 private:
  EmulatedDevice& device_;
  TimePoint at_;
};

EmulatedDevice::EmulatedDevice(Clock& clock, std::string name, const EmulatedCosts& costs)
    : clock_(clock),
      name_(std::move(name)),
      costs_(costs),
      memory_(std::make_shared<EmulatedMemory>(
          costs.memory, costs.rank < 0 ? "" : " of rank " + std::to_string(costs.rank))),
      free_(clock.now()),
      random_(costs.seed) {
  memory_->take(costs_.fixed_bytes);
  draw_factor();
}

EmulatedDevice& EmulatedDevice::of_thread() {
  MILLRACE_CHECK(bound, "this thread computes on no emulated device");
  return *bound;
}

void EmulatedDevice::bind_thread() {
  bound = this;
  seen_ = clock_.now();
  EmulatedMemory::count_tensors_of_thread(memory_);
}

TimePoint::duration EmulatedDevice::late(TimePoint now) {
  if (costs_.free_host && now > seen_) {
    late_ = std::max<TimePoint::duration>(late_,
                                          std::min<TimePoint::duration>(late_ + (now - seen_), kMostBehind));
    seen_ = now;
  }
  return late_;
}

TimePoint EmulatedDevice::host() {
  const TimePoint now = clock_.now();
  return now - late(now);
}

TimePoint EmulatedDevice::next() {
  return std::max(free_, host());
}

void EmulatedDevice::draw_factor() {
  if (costs_.jitter > 0) drawn_factor_ = std::exp(costs_.jitter * (random_.normal() - costs_.jitter / 2));
}

void EmulatedDevice::compute(double seconds) {
  std::unique_lock lock(mutex_);
  TimePoint::duration left = duration_of(seconds * costs_.factor * drawn_factor_);
  if (!shared_) {
    free_ = next() + left;
    return;
  }
  for (; left > kSlice; left -= kSlice) {
    const TimePoint end = free_ = shared_->append(next(), kSlice);
    lock.unlock();
    wait_until(end);
    lock.lock();
  }
  free_ = shared_->append(next(), left);
}

void EmulatedDevice::wait_until(TimePoint when) {
  TimePoint began;
  {
    const std::lock_guard lock(mutex_);
    began = host();
  }
  clock_.sleep_until(when);
  const std::lock_guard lock(mutex_);
  seen_ = clock_.now();
  late_ = seen_ - std::max(began, when);
}

TimePoint EmulatedDevice::wait() {
  TimePoint end;
  {
    const std::lock_guard lock(mutex_);
    end = free_;
  }
  if (end > clock_.now()) wait_until(end);
  const std::lock_guard lock(mutex_);
  return next();
}

TimePoint EmulatedDevice::host_now() {
  const std::lock_guard lock(mutex_);
  return host();
}

void EmulatedDevice::host_waited(TimePoint start, std::optional<TimePoint> moment) {
  const std::lock_guard lock(mutex_);
  const TimePoint now = clock_.now();
  const auto behind = late(start);
  seen_ = now;
  late_ = std::max(TimePoint::duration{},
                   moment ? now - std::max(*moment, start - behind) : behind - (now - start));
}

at::Tensor EmulatedDevice::upload(at::Tensor host) {
  return host.defined() ? host.to(where()) : host;
}

std::unique_ptr<DeviceMark> EmulatedDevice::mark() {
  const std::lock_guard lock(mutex_);
  draw_factor();
  return std::make_unique<EmulatedMark>(*this, next());
}

void EmulatedDevice::updated(const UpdateWork& work) {
  const auto found = costs_.updates.find(work.jobs);
  MILLRACE_CHECK(found != costs_.updates.end(), "an array of " << work.jobs << " jobs has no costs");
  const EmulatedUpdate& update = found->second;
  const auto passed_over = update.untouched_bytes.find(work.stage);
  const std::int64_t changed =
      work.bytes - (passed_over == update.untouched_bytes.end() ? 0 : passed_over->second);
  compute(double(work.bytes) * update.norm_s_per_byte + double(changed) * update.s_per_byte +
          (work.copied ? double(work.bytes) * update.copy_s_per_byte : 0));
}

void EmulatedDevice::touch(std::int64_t bytes) {
  memory_->take(bytes);
  memory_->give_back(bytes);
}

EmulatedDevice::Block::Block(EmulatedDevice& device, std::int64_t bytes, bool soon)
    : memory_(device.memory_), bytes_(bytes) {
  soon ? memory_->take_soon(bytes) : memory_->take(bytes);
}

void EmulatedDevice::Block::resize(std::int64_t bytes) {
  memory_->take_soon(bytes - std::exchange(bytes_, bytes));
}

}  // namespace millrace
