#include <unistd.h>

#include <chrono>

#include "runtime/device/device.h"
#include "runtime/device/host_memory.h"

namespace millrace {
namespace {

class CpuMark final : public DeviceMark {
 public:
  void wait() override {}
  double seconds_since(const DeviceMark& earlier) const override {
    return std::chrono::duration<double>(at_ - static_cast<const CpuMark&>(earlier).at_).count();
  }

 private:
  std::chrono::steady_clock::time_point at_ = std::chrono::steady_clock::now();
};

class CpuDevice final : public Device {
 public:
  std::string name() const override { return "cpu"; }
  std::string identity() const override { return "cpu"; }
  at::Device where() const override { return at::kCPU; }
  bool is_asynchronous() const override { return false; }
  void bind_thread() override {}
  at::Tensor upload(at::Tensor host) override { return host; }
  std::unique_ptr<DeviceMark> mark() override { return std::make_unique<CpuMark>(); }
  void synchronize() override {}
  DeviceMemory memory() const override {
    const HostMemory tensors = host_memory();
    return {.current = tensors.live, .peak = tensors.peak, .total = total_};
  }
  void reset_peak_memory() override { reset_host_peak(); }

 private:
  std::int64_t total_ = std::int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
};

}  // namespace

std::shared_ptr<Device> make_cpu_device() {
  return std::make_shared<CpuDevice>();
}

}  // namespace millrace
