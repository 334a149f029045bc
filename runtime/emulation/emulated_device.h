// A device that is not there. It keeps a time line of the work that it was handed, and computes nothing. Its
// tensors have shapes and no memory (LibTorch's device "meta").
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/device/device.h"

namespace millrace {

/// The costs of a device that do not belong to a layer. Seconds and bytes.
struct EmulatedCosts {
  double update_s_per_byte = 0;                   ///< LayerGraph::update_s_per_byte
  double update_copy_s_per_byte = 0;              ///< LayerGraph::update_copy_s_per_byte
  std::int64_t memory = 0;                        ///< of the device; 0: unlimited
  std::map<int, std::int64_t> stage_bytes{};      ///< bytes of the parameters of each stage that it holds
  std::map<int, std::int64_t> untouched_bytes{};  ///< of them, bytes that an update passes over
  double state_per_byte = 0;                      ///< bytes of rule state for a byte of parameters
};

/// Work is done in the order in which it was handed over, like the kernels of a GPU's stream: it begins when
/// the work before it has ended, and not before it was handed over. The host goes on meanwhile, and waits by
/// marks. A wait that ended late, because the host was busy, does not delay the work that follows it.
/// Thread-safe.
class EmulatedDevice final : public Device {
 public:
  /// `clock` must outlive it.
  EmulatedDevice(Clock& clock, std::string name, const EmulatedCosts& costs);

  /// Returns the device that the calling thread is bound to. Throws InternalError if there is none.
  static EmulatedDevice& of_thread();

  /// Hands over work of `seconds`.
  void compute(double seconds);
  /// Waits until the device has done all work that was handed over.
  void wait();
  /// Tells that the host has just waited `waited` for something else than this device.
  void host_waited(TimePoint::duration waited);

  /// Bytes of the device's memory that are taken while this object lives. Taking them throws OutOfMemory,
  /// with the sizes, where the device has no more.
  class Block {
   public:
    Block(EmulatedDevice& device, std::int64_t bytes);
    ~Block();
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

   private:
    EmulatedDevice& device_;
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
  DeviceMemory memory() const override;
  void reset_peak_memory() override;
  void updated(const UpdateWork& work) override;

 private:
  friend class EmulatedMark;
  TimePoint next() const;  // when work handed over now would begin
  void wait_until(TimePoint when);
  void take(std::int64_t bytes);  // with mutex_ held; negative: gives back

  Clock& clock_;
  const std::string name_;
  const EmulatedCosts costs_;
  mutable std::mutex mutex_;    // guards what follows
  TimePoint free_{};            // when all work that was handed over is done
  TimePoint::duration late_{};  // by how much the host's newest wait for the device ended too late
  std::int64_t current_ = 0, peak_ = 0;
  std::map<int, std::int64_t> weights_;  // by stage: bytes of all versions that lived after its newest update
};

}  // namespace millrace
