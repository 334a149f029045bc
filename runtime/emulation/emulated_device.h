// A device that is not there. It keeps a time line of the work that it was handed, and computes nothing. Its
// tensors have shapes and no memory (LibTorch's device "meta").
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

/// The costs of an update of the parameters of an array of jobs.
struct EmulatedUpdate {
  double s_per_byte = 0;       ///< LayerGraph::update_s_per_byte
  double copy_s_per_byte = 0;  ///< LayerGraph::update_copy_s_per_byte
  double norm_s_per_byte = 0;  ///< of the pass for a norm that clips; 0: gradients are not clipped so
  /// The bytes of the parameters that it passes over, by stage that the device holds.
  std::map<int, std::int64_t> untouched_bytes{};
};

/// The costs of a device that do not belong to a layer. Seconds and bytes.
struct EmulatedCosts {
  std::map<int, EmulatedUpdate> updates{};  ///< by jobs of an array; a single job is an array of 1
  int rank = -1;                            ///< whose device it is, for messages; -1: not said
  std::int64_t memory = 0;                  ///< of the device; 0: unlimited
  std::int64_t fixed_bytes = 0;             ///< taken from the start to the end, besides tensors
  double sum_s_per_byte = 0;                ///< LayerGraph::sum_s_per_byte
  /// All times are multiplied by this. It is Measured::core_share where ranks share the device as they shared
  /// a core, divided by the speed of the device's kind, times the factor of a straggler.
  double factor = 1;
  double jitter = 0;  ///< sigma of a log-normal factor of mean 1; 0: times do not vary
  /// The device does not wait for what the thread that hands over work does between two waits: the profile
  /// has the real thread's work. True on a real clock, unless that thread decodes data.
  bool free_host = false;
  std::uint64_t seed = 0;  ///< of the factors
};

/// Work is done in the order in which it was handed over, like the kernels of a GPU's stream: it begins when
/// the work before it has ended, and not before it was handed over. The host goes on meanwhile, and waits by
/// marks. Each mark begins an action of the host; with `jitter`, it has a factor of its own on its seconds. A
/// wait that ended late, because the host was busy, does not delay the work that follows it. Tensors that a
/// bound thread makes on the device count in its memory. Thread-safe; one thread hands over work.
class EmulatedDevice final : public Device {
 public:
  /// `clock` must outlive it.
  EmulatedDevice(Clock& clock, std::string name, const EmulatedCosts& costs);

  /// Returns the device that the calling thread is bound to. Throws InternalError if there is none.
  static EmulatedDevice& of_thread();

  /// Lets others use the device too, in slices of time. Before any work is handed over.
  void share(std::shared_ptr<SharedTimeline> timeline) { shared_ = std::move(timeline); }

  /// Hands over work of `seconds`. On a shared device it returns when the last slice of the work has begun.
  void compute(double seconds);
  /// Hands over the sum of `bytes` of other ranks with its own.
  void add_up(std::int64_t bytes) { compute(double(bytes) * costs_.sum_s_per_byte); }
  /// Waits until the device has done all work that was handed over. Returns when what the host does next
  /// would happen if it had not woken up too late.
  TimePoint wait();
  /// Returns EmulatedCosts::free_host.
  bool host_is_free() const { return costs_.free_host; }
  /// Returns the host's time: what it would be if the host had not woken up too late. It never goes back.
  TimePoint host_now();
  /// Tells that the host has waited since `start` for something else than this device, which happened at
  /// `moment`, or at an unknown moment. If the host noticed it later, that delays no work.
  void host_waited(TimePoint start, std::optional<TimePoint> moment);

  /// Bytes of the device's memory that are taken while this object lives. Taking them throws OutOfMemory,
  /// with the sizes, where the device has no more.
  class Block {
   public:
    /// `soon`: tensors that the bytes stand for are about to be freed (EmulatedMemory::take_soon).
    Block(EmulatedDevice& device, std::int64_t bytes, bool soon = false);
    ~Block() { memory_->give_back(bytes_); }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    /// Changes the bytes, as the constructor takes them with `soon`.
    void resize(std::int64_t bytes);

   private:
    std::shared_ptr<EmulatedMemory> memory_;
    std::int64_t bytes_;
  };
  /// Takes `bytes` and gives them back at once: what a layer's backward works with.
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
  TimePoint next();  // when work handed over now would begin
  void wait_until(TimePoint when);

  Clock& clock_;
  const std::string name_;
  const EmulatedCosts costs_;
  const std::shared_ptr<EmulatedMemory> memory_;
  std::shared_ptr<SharedTimeline> shared_;  // null: the device is this job's alone
  std::mutex mutex_;                        // guards what follows
  TimePoint free_{};                        // when all work that was handed over is done
  TimePoint::duration late_{};              // by how much the host is behind the time that it would have
  TimePoint seen_{};                        // until when late_ knows what the host did
  RandomStream random_;
  double drawn_factor_ = 1;  // of all work until the next mark: an action has one
};

}  // namespace millrace
