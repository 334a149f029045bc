// GELU of small tensors in float32 on the CPU, with its derivative in the same pass, by AVX-512. ATen takes
// longer to find its kernel than to run it, and computes the error function once more in the backward.
#pragma once

#include <cstdint>

namespace millrace {

/// kGeluElements: ATen's kernel takes a multiple of it in whole vectors, without a remainder that has other
/// bits. kMostGeluElements: ATen shares larger tensors among threads.
constexpr std::int64_t kGeluElements = 32, kMostGeluElements = 1 << 14;

/// Returns whether this processor and this build have the kernel, and whether it gives the bits of this
/// LibTorch's vector kernels (at::gelu and at::gelu_backward of form "none"). The comparison runs once, on
/// numbers of all magnitudes. Thread-safe.
bool has_gelu_kernel();

/// Computes y = x cdf(x) and, unless it is null, derivative = cdf(x) + x pdf(x). `count` is a multiple of
/// kGeluElements.
void gelu_with_derivative(const float* x, float* y, float* derivative, std::int64_t count);

}  // namespace millrace
