// For the files of the CUDA runtime's stand-in alone.
#pragma once

#include "standin.h"

/// The first line of a function that the device takes part in: counts the call, and returns the error that is
/// due.
#define STANDIN_ENTER(name) \
  if (const cudaError_t due = standin::count_call(name); due != cudaSuccess) return due

namespace standin {

/// Loads the operators beside this library, once. Only a process that asks for GPUs has LibTorch's CUDA part.
cudaError_t load_operators();
/// Waits for all streams of the calling thread's GPU.
void drain_device();

}  // namespace standin
