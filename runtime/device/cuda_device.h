// The CUDA device. It is built only into millrace-worker-cuda (preset cuda).
#pragma once

#include <memory>

#include "runtime/base/result.h"
#include "runtime/device/device.h"

namespace millrace {

/// Returns the number of GPUs that this process may use (CUDA_VISIBLE_DEVICES); 0 without a driver.
int num_cuda_devices();

/// Makes the device for GPU `local_rank` modulo the number of GPUs. Returns an error if no GPU is visible, or
/// if CUDA cannot start on it.
Result<std::shared_ptr<Device>> make_cuda_device(int local_rank);

}  // namespace millrace
