// The only file in this folder that includes CUDA headers. Work is issued on the current device's default
// stream. The caching allocator, cuBLAS and cuDNN are LibTorch's.
#include "runtime/device/cuda_device.h"

#include <ATen/Context.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

class CudaMark final : public DeviceMark {
 public:
  explicit CudaMark(c10::DeviceIndex device) {
    const c10::cuda::CUDAGuard guard(device);
    // The event records its time, and a wait for it sleeps: a rank's host thread shares its core with the
    // loader.
    C10_CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventBlockingSync));
    C10_CUDA_CHECK(cudaEventRecord(event_, c10::cuda::getCurrentCUDAStream(device)));
  }
  CudaMark(const CudaMark&) = delete;
  CudaMark& operator=(const CudaMark&) = delete;
  ~CudaMark() override { static_cast<void>(cudaEventDestroy(event_)); }
  void wait() override { C10_CUDA_CHECK(cudaEventSynchronize(event_)); }
  // The runner queries after every action, so the query must not access the device.
  bool is_reached() const override { return false; }
  double seconds_since(const DeviceMark& earlier) const override {
    float milliseconds = 0;
    C10_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, static_cast<const CudaMark&>(earlier).event_, event_));
    return double(milliseconds) * 1e-3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(c10::DeviceIndex index) : index_(index) {
    bind_thread();
    cudaDeviceProp properties{};
    C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
    name_ = "cuda:" + std::to_string(int{index}) + " " + properties.name;
    total_ = static_cast<std::int64_t>(properties.totalGlobalMem);
    char address[32];
    C10_CUDA_CHECK(cudaDeviceGetPCIBusId(address, sizeof address, index));
    identity_ = address;
  }
  std::string name() const override { return name_; }
  std::string identity() const override { return identity_; }
  at::Device where() const override { return {at::kCUDA, index_}; }
  void bind_thread() override { c10::cuda::set_device(index_); }

  at::Tensor upload(at::Tensor host) override {
    if (!host.defined() || host.device() == where()) return host;
    // The host allocator keeps page-locked memory until the copies that read it are complete.
    if (host.device().is_cpu() && !host.is_pinned()) host = host.pin_memory();
    return host.to(where(), /*non_blocking=*/true);
  }

  std::unique_ptr<DeviceMark> mark() override { return std::make_unique<CudaMark>(index_); }
  void synchronize() override {
    const c10::cuda::CUDAGuard guard(index_);
    c10::cuda::device_synchronize();
  }

  void reset_peak_memory() override { c10::cuda::CUDACachingAllocator::resetPeakStats(index_); }
  DeviceMemory memory() const override {
    using c10::CachingAllocator::StatType;
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(index_);
    // A block may be up to 1 MiB larger than its tensor: the requested bytes are counted.
    const auto& asked = stats.requested_bytes[static_cast<std::size_t>(StatType::AGGREGATE)];
    const auto& reserved = stats.reserved_bytes[static_cast<std::size_t>(StatType::AGGREGATE)];
    return {.current = asked.current, .peak = asked.peak, .taken = reserved.peak, .total = total_};
  }

 private:
  c10::DeviceIndex index_;
  std::string name_, identity_;
  std::int64_t total_ = 0;
};

}  // namespace

int num_cuda_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return 0;
  }
  return count;
}

Result<std::shared_ptr<Device>> make_cuda_device(int local_rank) {
  MILLRACE_CHECK(local_rank >= 0);
  const int count = num_cuda_devices();
  if (count == 0) {
    int driver = 0;
    static_cast<void>(cudaDriverGetVersion(&driver));
    return Problem{"--device cuda", "no GPU is visible to this process",
                   driver == 0 ? "no NVIDIA driver is loaded here; train with --device cpu"
                               : "is CUDA_VISIBLE_DEVICES empty? Or train with --device cpu"};
  }
  try {
    at::globalContext().lazyInitDevice(at::kCUDA);
    // TensorFloat-32 is disabled: it would round the inputs of every convolution to 10 bits.
    at::globalContext().setAllowTF32CuDNN(false);
    at::globalContext().setAllowTF32CuBLAS(false);
    return std::shared_ptr<Device>(
        std::make_shared<CudaDevice>(static_cast<c10::DeviceIndex>(local_rank % count)));
  } catch (const std::exception& error) {
    return Problem{"--device cuda", std::string("CUDA does not start: ") + error.what(),
                   "nvidia-smi shows whether the driver works"};
  }
}

}  // namespace millrace
