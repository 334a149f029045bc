// The device that holds a rank's tensors and runs its kernels. The engine uses only this interface: layers,
// rules and losses are ATen ops, which run on their tensors' device.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "runtime/base/clock.h"

namespace millrace {

/// The memory of a device in bytes. Cheap enough to query at every step.
struct DeviceMemory {
  std::int64_t current = 0;  ///< bytes of tensors; the CPU counts from install_host_allocator() on
  std::int64_t peak = 0;     ///< peak of `current`; ranks that are threads share one count
  /// peak bytes that this process reserved on a GPU for tensors, free blocks included
  std::int64_t taken = 0;
  std::int64_t total = 0;  ///< memory of the device, shared by all programs
};

/// A point in the device's work queue, such as a CUDA event.
class DeviceMark {
 public:
  virtual ~DeviceMark() = default;
  /// Blocks until the device has reached this point.
  virtual void wait() = 0;
  /// Returns whether the device has reached this point. It may return false if a query would take time.
  virtual bool is_reached() const = 0;
  /// Returns the seconds on the device's clock from `earlier` (on the same device) to this mark. The device
  /// must have reached both: a wait for each of them, or for a later mark, has returned.
  virtual double seconds_since(const DeviceMark& earlier) const = 0;
};

/// An update of the weights of one stage, as reported to a device.
struct UpdateWork {
  int stage = 0;
  int jobs = 1;            ///< jobs in the array whose parameters are updated
  std::int64_t bytes = 0;  ///< bytes of the array's parameters in the stage
  bool copied = false;     ///< the update wrote to a copy, because microbatches still need the old version
};

/// The device of one rank. An op may return immediately while the device executes all ops in order. On the
/// CPU an op is complete when it returns. Callers need not distinguish the two: marks measure times, and
/// synchronize() waits. Thread-safe.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;  ///< e.g. "cpu" or "cuda:0 NVIDIA H200"
  /// Returns a text that is equal for two ranks on one host if and only if they share the device: a GPU's PCI
  /// address. Empty: the device's tensors are in host memory.
  virtual std::string identity() const = 0;
  virtual at::Device where() const = 0;  ///< the device for new tensors
  /// Binds the calling thread to the device. Every thread that works for this rank must call it before it
  /// creates tensors.
  virtual void bind_thread() = 0;
  /// Returns a copy of `host` on this device, ordered before later work; or `host` itself if it is already
  /// there. The copy is asynchronous, from page-locked memory. The caller may release `host` immediately. It
  /// may not write to `host` if that is page-locked.
  virtual at::Tensor upload(at::Tensor host) = 0;
  virtual std::unique_ptr<DeviceMark> mark() = 0;
  virtual void synchronize() = 0;  ///< waits for all work
  virtual DeviceMemory memory() const = 0;
  virtual void reset_peak_memory() = 0;  ///< resets the peak to the current bytes
  /// Returns the host's time. For a device that computes, it is the time of `clock`.
  virtual TimePoint host_time(const Clock& clock) { return clock.now(); }
  /// Notifies the device that all ops of an update have been issued. A device that computes ignores it.
  virtual void updated(const UpdateWork& /*work*/) {}
};

/// Returns a copy of `tensor` in host memory, ordered after the device's work, or `tensor` itself if it is
/// there. Returns zeros for a tensor without values (an emulated device's).
at::Tensor to_host(const at::Tensor& tensor);

std::shared_ptr<Device> make_cpu_device(Clock& clock = steady_clock());

}  // namespace millrace
