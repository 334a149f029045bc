// LibTorch's default generator, given a seed for the time of one call.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>

namespace millrace {

/// While one lives, operators that are given no generator draw what follows from `seed` on `device`. The
/// generator's state comes back at the end. All threads share the generator, so one thread at a time has one.
class SeededDraws {
 public:
  SeededDraws(at::Device device, std::uint64_t seed);
  ~SeededDraws();
  SeededDraws(const SeededDraws&) = delete;
  SeededDraws& operator=(const SeededDraws&) = delete;

 private:
  std::lock_guard<std::mutex> lock_;
  at::Generator generator_;
  at::Tensor before_;
};

}  // namespace millrace
