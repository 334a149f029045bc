// millrace-worker-cuda: the same commands on a GPU. Built by preset cuda.
#include <cstdlib>
#include <exception>

#include "driver/worker/worker_options.h"
#include "runtime/device/cuda_device.h"
#ifdef MILLRACE_NCCL
#include "runtime/comm/nccl_library.h"
#endif

namespace {

/// A GPU that is of no more use fails again where LibTorch frees memory on the way out, and C++ then ends the
/// process. The failure is told as any other.
[[noreturn]] void tell_and_end() {
  const std::exception_ptr failure = std::current_exception();
  if (!failure) std::abort();
  std::_Exit(millrace::guarded([&]() -> int { std::rethrow_exception(failure); }));
}

}  // namespace

int main(int argc, char** argv) {
  // Read when CUDA starts; what the user has set stays.
  // Streams share this many queues of the device. A receive that waits must not stand before the computation
  // that its peer needs first, so there are as many as there can be.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  // Page-locked memory is taken at the start, in one piece of so many MiB: a driver may wait for all work of
  // a GPU where it is taken later.
  if (!std::getenv("PYTORCH_ALLOC_CONF"))
    ::setenv("PYTORCH_CUDA_ALLOC_CONF", "pinned_reserve_segment_size_mb:256", 0);
  std::set_terminate(tell_and_end);
  millrace::Accelerator accelerator{.make_device = millrace::make_cuda_device};
#ifdef MILLRACE_NCCL
  accelerator.make_nccl = [](const millrace::Device& device) {
    return millrace::make_nccl_library(device.where());
  };
#endif
  return millrace::worker_program({argv + 1, argv + argc}, accelerator);
}
