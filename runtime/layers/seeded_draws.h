// Seeds LibTorch's default generator for the duration of one call.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>

namespace millrace {

/// During the lifetime of such an object, operators without an explicit generator draw from a stream that
/// starts at `seed` on `device`. The destructor restores the generator's state. All threads share the
/// generator, so only one thread at a time can have such an object.
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
