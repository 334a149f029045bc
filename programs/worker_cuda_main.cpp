// millrace-worker-cuda: the same commands on a GPU. Built by preset cuda.
#include <cstdlib>

#include "driver/worker/worker_options.h"
#include "runtime/device/cuda_device.h"
#ifdef MILLRACE_NCCL
#include "runtime/comm/nccl_library.h"
#endif

int main(int argc, char** argv) {
  // Read when CUDA starts; what the user has set stays.
  // Streams share this many queues of the device. A receive that waits must not stand before the computation
  // that its peer needs first, so there are as many as there can be.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  // cuBLAS is deterministic only with a workspace of a fixed size (--deterministic).
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
  millrace::Accelerator accelerator{.make_device = millrace::make_cuda_device};
#ifdef MILLRACE_NCCL
  accelerator.make_nccl = [](const millrace::Device& device) {
    return millrace::make_nccl_library(device.where());
  };
#endif
  return millrace::worker_program({argv + 1, argv + argc}, accelerator);
}
