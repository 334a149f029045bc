#include <ATen/ops/zeros.h>
#include <unistd.h>

#include "runtime/device/device.h"
#include "runtime/device/host_memory.h"

namespace millrace {
namespace {

class CpuMark final : public DeviceMark {
 public:
  explicit CpuMark(TimePoint at) : at_(at) {}
  void wait() override {}
  bool is_reached() const override { return true; }
  double seconds_since(const DeviceMark& earlier) const override {
    return std::chrono::duration<double>(at_ - static_cast<const CpuMark&>(earlier).at_).count();
  }

 private:
  TimePoint at_;
};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(Clock& clock) : clock_(clock) {}
  std::string name() const override { return "cpu"; }
  std::string identity() const override { return ""; }
  at::Device where() const override { return at::kCPU; }
  void bind_thread() override {}
  at::Tensor upload(at::Tensor host) override { return host; }
  std::unique_ptr<DeviceMark> mark() override { return std::make_unique<CpuMark>(clock_.now()); }
  void synchronize() override {}
  DeviceMemory memory() const override {
    const HostMemory tensors = host_memory();
    return {.current = tensors.live, .peak = tensors.peak, .total = total_};
  }
  void reset_peak_memory() override { reset_host_peak(); }

 private:
  Clock& clock_;
  std::int64_t total_ = std::int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
};

}  // namespace

at::Tensor to_host(const at::Tensor& tensor) {
  if (tensor.is_meta()) return at::zeros(tensor.sizes(), tensor.options().device(at::kCPU));
  return tensor.cpu();
}

std::shared_ptr<Device> make_cpu_device(Clock& clock) {
  return std::make_shared<CpuDevice>(clock);
}

}  // namespace millrace
