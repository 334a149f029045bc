// GELU of small tensors in float32 on the CPU, with its derivative in the same pass: ATen's takes longer to
// find its kernel than to run it, and computes the error function once more in the backward. With AVX-512.
#pragma once

#include <cstdint>

namespace millrace {

/// Multiples of these ATen's kernel takes by whole vectors, without a rest of other bits; beyond the most its
/// threads share them.
constexpr std::int64_t kGeluElements = 32, kMostGeluElements = 1 << 14;

/// Whether this processor and this build have it, and it has the bits of this LibTorch's vector kernels
/// (at::gelu and at::gelu_backward of form "none"): tried once on numbers of all sizes. Thread-safe.
bool has_gelu_kernel();

/// y = x cdf(x), and where it is not null derivative = cdf(x) + x pdf(x), of `count` elements, a multiple of
/// kGeluElements.
void gelu_with_derivative(const float* x, float* y, float* derivative, std::int64_t count);

}  // namespace millrace
