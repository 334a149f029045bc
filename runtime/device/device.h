// The device on which a rank's tensors live and its kernels run. The engine needs no more than this
// interface: layers, rules and losses are ATen ops, which run where their tensors are.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "runtime/base/clock.h"

namespace millrace {

/// The memory of a device in bytes. It is cheap to ask for at every step.
struct DeviceMemory {
  std::int64_t current = 0;  ///< of tensors; the CPU counts them from install_host_allocator() on
  std::int64_t peak = 0;     ///< most bytes of tensors so far, likewise; ranks that are threads count as one
  std::int64_t taken = 0;  ///< most bytes that this process took from a GPU for tensors, free blocks included
  std::int64_t total = 0;  ///< memory of the device, which all programs share
};

/// A point in the device's order of work.
class DeviceMark {
 public:
  virtual ~DeviceMark() = default;
  /// Blocks until the device has come this far.
  virtual void wait() = 0;
  /// Tells whether the device has come this far. It may return false if asking would take time.
  virtual bool is_reached() const = 0;
  /// Returns the seconds on the device's clock from `earlier` (of the same device) to this mark. The
  /// device must have reached both: they, or a later mark, have been waited for.
  virtual double seconds_since(const DeviceMark& earlier) const = 0;
};

/// An update of the weights of one stage, as a device is told of it.
struct UpdateWork {
  int stage = 0;
  int jobs = 1;            ///< of the array whose parameters they are
  std::int64_t bytes = 0;  ///< of the array's parameters in the stage
  bool copied = false;  ///< the update worked on a copy, because microbatches still need the version before
};

/// The device of one rank. An op may return at once while the device works through all ops in order. On the
/// CPU an op is done when it returns. Callers need not know which: marks tell times, and synchronize() waits.
/// Thread-safe.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;  ///< e.g. "cpu" or "cuda:0 NVIDIA H200"
  /// Returns a text that is equal for two ranks of one host if and only if they share the device: a GPU's PCI
  /// address. Empty: its tensors lie in the host's memory.
  virtual std::string identity() const = 0;
  virtual at::Device where() const = 0;  ///< the device for new tensors
  /// Binds the calling thread to the device. Every thread that works for this rank calls it before it makes
  /// tensors.
  virtual void bind_thread() = 0;
  /// Returns a copy of `host` on this device, in order with the work that follows; or `host` itself if it is
  /// there already. The copy runs beside the caller, from page-locked memory. The caller may drop `host` at
  /// once. It may not write into it if it is page-locked.
  virtual at::Tensor upload(at::Tensor host) = 0;
  virtual std::unique_ptr<DeviceMark> mark() = 0;
  virtual void synchronize() = 0;  ///< waits for all work
  virtual DeviceMemory memory() const = 0;
  virtual void reset_peak_memory() = 0;  ///< lets the peak start anew from the current bytes
  /// Returns the host's time. Beside a device that computes it is that of `clock`.
  virtual TimePoint host_time(const Clock& clock) { return clock.now(); }
  /// Tells that an update has been handed over, op by op. A device that computes need not know.
  virtual void updated(const UpdateWork& /*work*/) {}
};

/// Returns a copy of `tensor` in the host's memory, in order with the device's work, or `tensor` itself if it
/// is there. Zeros for a tensor without values (an emulated device's).
at::Tensor to_host(const at::Tensor& tensor);

std::shared_ptr<Device> make_cpu_device(Clock& clock = steady_clock());

}  // namespace millrace
