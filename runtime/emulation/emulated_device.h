// An emulated device. It keeps a timeline of the work issued to it, and computes nothing. Its tensors have
// shapes and no memory (LibTorch's device "meta").
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/random.h"
#include "runtime/device/device.h"
#include "runtime/emulation/emulated_memory.h"
#include "runtime/emulation/shared_timeline.h"

namespace millrace {

/// The costs of a parameter update for an array of jobs.
struct EmulatedUpdate {
  double s_per_byte = 0;       ///< LayerGraph::update_s_per_byte
  double copy_s_per_byte = 0;  ///< LayerGraph::update_copy_s_per_byte
  /// cost of the pass that computes the norm for clipping; 0: gradients are not clipped by norm
  double norm_s_per_byte = 0;
  /// By stage on the device: bytes of the parameters that the update skips.
  std::map<int, std::int64_t> untouched_bytes{};
};

/// The costs of a device that belong to no layer. Seconds and bytes.
struct EmulatedCosts {
  std::map<int, EmulatedUpdate> updates{};  ///< by number of jobs in an array; a single job is an array of 1
  int rank = -1;                            ///< the rank of the device, for messages; -1: unspecified
  std::int64_t memory = 0;                  ///< memory of the device; 0: unlimited
  std::int64_t fixed_bytes = 0;             ///< allocated for the whole run, in addition to tensors
  double sum_s_per_byte = 0;                ///< LayerGraph::sum_s_per_byte
  /// All times are multiplied by this factor. It is the factor of a straggler, divided by the speed of the
  /// device's kind. If ranks share the device as they shared a core, it includes Measured::core_share.
  double factor = 1;
  double jitter = 0;  ///< sigma of a log-normal factor of mean 1; 0: times do not vary
  /// The device does not wait for the issuing thread's work between two waits: the profile includes the real
  /// thread's work. True on a real clock, unless that thread decodes data.
  bool free_host = false;
  std::uint64_t seed = 0;  ///< seed of the random factors
};

/// Work runs in issue order, like the kernels of a GPU's stream: it starts after the previous work has ended,
/// and not before it was issued. The host continues meanwhile, and waits by marks. Each mark starts an action
/// of the host; with `jitter`, each action's seconds have their own factor. A wait that ended late, because
/// the host was busy, does not delay later work. Tensors that a bound thread creates on the device count in
/// its memory. Thread-safe, but only one thread may issue work.
class EmulatedDevice final : public Device {
 public:
  /// `clock` must outlive the object.
  EmulatedDevice(Clock& clock, std::string name, const EmulatedCosts& costs);

  /// Returns the device to which the calling thread is bound. Throws InternalError if there is none.
  static EmulatedDevice& of_thread();

  /// Shares the device with other jobs or ranks, in time slices. Must be called before any work is issued.
  void share(std::shared_ptr<SharedTimeline> timeline) { shared_ = std::move(timeline); }

  /// Issues work of `seconds`. On a shared device it returns when the last slice of the work has started.
  void compute(double seconds);
  /// Issues the addition of `bytes` from other ranks to its own.
  void add_up(std::int64_t bytes) { compute(double(bytes) * costs_.sum_s_per_byte); }
  /// Waits until the device has completed all issued work. Returns the time at which the host would continue
  /// if it had not woken up late.
  TimePoint wait();
  /// Returns EmulatedCosts::free_host.
  bool host_is_free() const { return costs_.free_host; }
  /// Returns the host's time, corrected for late wake-ups. It never decreases.
  TimePoint host_now();
  /// Reports that the host has waited since `start` for an event outside this device, which occurred at
  /// `moment`, or at an unknown time. If the host noticed it later, that delays no work.
  void host_waited(TimePoint start, std::optional<TimePoint> moment);

  /// Device memory that is allocated for the lifetime of this object. Allocation throws OutOfMemory, with the
  /// sizes, if the device has too little.
  class Block {
   public:
    /// `soon`: tensors that the bytes represent are about to be freed (EmulatedMemory::take_soon).
    Block(EmulatedDevice& device, std::int64_t bytes, bool soon = false);
    ~Block() { memory_->give_back(bytes_); }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    /// Changes the bytes, like the constructor with `soon`.
    void resize(std::int64_t bytes);

   private:
    std::shared_ptr<EmulatedMemory> memory_;
    std::int64_t bytes_;
  };
  /// Allocates and immediately frees `bytes`: the workspace of a layer's backward.
  void touch(std::int64_t bytes);

  std::string name() const override { return name_; }
  std::string identity() const override { return ""; }
  at::Device where() const override { return at::kMeta; }
  void bind_thread() override;
  at::Tensor upload(at::Tensor host) override;
  std::unique_ptr<DeviceMark> mark() override;
  void synchronize() override { wait(); }
  DeviceMemory memory() const override { return memory_->now(); }
  void reset_peak_memory() override { memory_->reset_peak(); }
  TimePoint host_time(const Clock&) override { return host_now(); }
  void updated(const UpdateWork& work) override;

 private:
  friend class EmulatedMark;
  void draw_factor();
  TimePoint::duration late(TimePoint now);
  TimePoint host();  // host_now() with the lock held
  TimePoint next();  // start time of work that is issued now
  void wait_until(TimePoint when);

  Clock& clock_;
  const std::string name_;
  const EmulatedCosts costs_;
  const std::shared_ptr<EmulatedMemory> memory_;
  std::shared_ptr<SharedTimeline> shared_;  // null: the device is not shared
  std::mutex mutex_;                        // guards the members below
  TimePoint free_{};                        // end of all issued work
  TimePoint::duration late_{};              // how far the host lags behind its corrected time
  TimePoint seen_{};                        // host time up to which late_ is known
  RandomStream random_;
  double drawn_factor_ = 1;  // applies to all work until the next mark: one factor per action
};

}  // namespace millrace
