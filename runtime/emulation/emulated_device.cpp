#include "runtime/emulation/emulated_device.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/device/failures.h"

namespace millrace {

namespace {

thread_local EmulatedDevice* bound = nullptr;

TimePoint::duration duration_of(double seconds) {
  return std::chrono::duration_cast<TimePoint::duration>(Seconds(seconds));
}

std::string mib(std::int64_t bytes) {
  return printed("%.1f MiB", double(bytes) / double(kMiB));
}

}  // namespace

class EmulatedMark final : public DeviceMark {
 public:
  EmulatedMark(EmulatedDevice& device, TimePoint at) : device_(device), at_(at) {}
  void wait() override { device_.wait_until(at_); }
  // The runner asks after every action. It reads all times once a step, as on a GPU.
  bool is_reached() const override { return false; }
  double seconds_since(const DeviceMark& earlier) const override {
    return Seconds(at_ - static_cast<const EmulatedMark&>(earlier).at_).count();
  }

 private:
  EmulatedDevice& device_;
  TimePoint at_;
};

EmulatedDevice::EmulatedDevice(Clock& clock, std::string name, const EmulatedCosts& costs)
    : clock_(clock), name_(std::move(name)), costs_(costs), free_(clock.now()) {
  // Weights, gradients and rule state.
  for (const auto& [stage, bytes] : costs_.stage_bytes) {
    take(bytes * 2 + saturating_bytes(double(bytes) * costs_.state_per_byte));
    weights_[stage] = bytes;
  }
}

EmulatedDevice& EmulatedDevice::of_thread() {
  MILLRACE_CHECK(bound, "this thread computes on no emulated device");
  return *bound;
}

void EmulatedDevice::bind_thread() {
  bound = this;
}

TimePoint EmulatedDevice::next() const {
  return std::max(free_, clock_.now() - late_);
}

void EmulatedDevice::compute(double seconds) {
  const std::lock_guard lock(mutex_);
  free_ = next() + duration_of(seconds);
  late_ = {};
}

void EmulatedDevice::wait_until(TimePoint when) {
  clock_.sleep_until(when);
  const std::lock_guard lock(mutex_);
  late_ = std::max(TimePoint::duration{}, clock_.now() - std::max(when, free_));
}

void EmulatedDevice::wait() {
  TimePoint end;
  {
    const std::lock_guard lock(mutex_);
    end = free_;
  }
  if (end > clock_.now()) wait_until(end);
}

void EmulatedDevice::host_waited(TimePoint::duration waited) {
  const std::lock_guard lock(mutex_);
  late_ = std::max(TimePoint::duration{}, late_ - waited);
}

at::Tensor EmulatedDevice::upload(at::Tensor host) {
  return host.defined() ? host.to(where()) : host;
}

std::unique_ptr<DeviceMark> EmulatedDevice::mark() {
  const std::lock_guard lock(mutex_);
  return std::make_unique<EmulatedMark>(*this, next());
}

void EmulatedDevice::updated(const UpdateWork& work) {
  const auto passed_over = costs_.untouched_bytes.find(work.stage);
  const std::int64_t changed =
      work.bytes - (passed_over == costs_.untouched_bytes.end() ? 0 : passed_over->second);
  compute(double(changed) * costs_.update_s_per_byte +
          (work.copied ? double(work.bytes) * costs_.update_copy_s_per_byte : 0));
  const std::lock_guard lock(mutex_);
  std::int64_t& held = weights_[work.stage];
  take(work.bytes * work.versions - held);
  held = work.bytes * work.versions;
}

void EmulatedDevice::take(std::int64_t bytes) {
  if (bytes > 0 && costs_.memory > 0 && current_ + bytes > costs_.memory)
    throw OutOfMemory("out of memory on the emulated device: no room for " + mib(bytes) + "; " +
                          mib(current_) + " of " + mib(costs_.memory) + " are taken",
                      kLessMemory);
  current_ += bytes;
  peak_ = std::max(peak_, current_);
}

void EmulatedDevice::touch(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  take(bytes);
  take(-bytes);
}

DeviceMemory EmulatedDevice::memory() const {
  const std::lock_guard lock(mutex_);
  return {.current = current_, .peak = peak_, .total = costs_.memory};
}

void EmulatedDevice::reset_peak_memory() {
  const std::lock_guard lock(mutex_);
  peak_ = current_;
}

EmulatedDevice::Block::Block(EmulatedDevice& device, std::int64_t bytes) : device_(device), bytes_(bytes) {
  const std::lock_guard lock(device.mutex_);
  device.take(bytes);
}

EmulatedDevice::Block::~Block() {
  const std::lock_guard lock(device_.mutex_);
  device_.take(-bytes_);
}

}  // namespace millrace
