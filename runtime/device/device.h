// The device on which a rank's tensors live and its kernels run. The engine asks for nothing else: layers,
// rules and losses are ATen ops, which go where their tensors are.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "runtime/base/clock.h"

namespace millrace {

/// Bytes. Cheap to ask for at every step.
struct DeviceMemory {
  std::int64_t current = 0;  ///< of tensors (the CPU counts them once install_host_allocator was called)
  std::int64_t peak = 0;     ///< of tensors since the start, likewise; ranks that are threads count as one
  std::int64_t total = 0;    ///< what the device has, for all programs together
};

/// A point in the device's order of work.
class DeviceMark {
 public:
  virtual ~DeviceMark() = default;
  /// Blocks until the device has come this far.
  virtual void wait() = 0;
  /// Whether the device has come this far. It may answer false where asking would cost time.
  virtual bool is_reached() const = 0;
  /// Seconds of the device from `earlier` (of the same device) to here. Both must have been waited for.
  virtual double seconds_since(const DeviceMark& earlier) const = 0;
};

/// One rank's. An op may return at once, and the device work through them in order; the CPU has done an op
/// when it returns. Nobody asks which: marks tell times, synchronize() waits. Thread-safe.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;  ///< "cpu", "cuda:0 NVIDIA H200"
  /// Equal for two ranks of one host if and only if they share the device: a GPU's PCI address. Empty: its
  /// tensors lie in the host's memory.
  virtual std::string identity() const = 0;
  virtual at::Device where() const = 0;  ///< for tensors
  /// To be called by every thread that works for this rank, before it makes tensors.
  virtual void bind_thread() = 0;
  /// `host` on this device, in order with the work that follows; `host` itself if it is there already. The
  /// copy runs beside the caller, from page-locked memory: the caller may drop `host` at once, but not write
  /// into it if it is page-locked.
  virtual at::Tensor upload(at::Tensor host) = 0;
  virtual std::unique_ptr<DeviceMark> mark() = 0;
  virtual void synchronize() = 0;  ///< waits for all work
  virtual DeviceMemory memory() const = 0;
  virtual void reset_peak_memory() = 0;  ///< the peak counts from what is there now
};

std::shared_ptr<Device> make_cpu_device(Clock& clock = steady_clock());

}  // namespace millrace
