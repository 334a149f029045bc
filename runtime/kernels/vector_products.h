// The products of a linear layer in float32 with vectors of 16 or 8 floats (AVX-512, AVX2). Each element is a
// sum over the inner dimension by fused multiply-adds in blocks. A block starts at zero and is summed in
// order; the blocks' sums are added in order. The bits therefore depend on the block sizes alone, not on the
// number of threads, the vector width or alignment. The kernels prefetch memory that is not in the caches,
// which a BLAS does not. All matrices are dense, row-major and of any size. Thread-safe.
#pragma once

#include <cstdint>

namespace millrace {

/// The block sizes for a sum of k products, as chosen by two code paths of the MKL in LibTorch 2.11.
enum class SumOrder {
  /// Blocks of 384; a length between one and two blocks is split into halves. MKL on Intel with AVX-512.
  Of384,
  /// One block if k is at most 192; two halves (and a block of 1 if k is odd) below 384; else blocks of 192.
  /// MKL on AMD (Zen), AVX2.
  Of192,
};

/// Returns whether this processor, this build and LibTorch (ATEN_CPU_CAPABILITY) allow AVX-512 or AVX2
/// kernels.
bool has_vector_products();

/// y [m, n] = added + x [m, k] w^T for w [n, k]. Rows of `added` are `added_row` floats apart; 0 means a bias
/// [n]. x is transposed instead of w, in registers, one vector of rows at a time. Intended for few rows, but
/// more than 8.
void multiply_by_rows(SumOrder order, const float* x, const float* w, const float* added,
                      std::int64_t added_row, float* y, std::int64_t m, std::int64_t k, std::int64_t n);

/// c [m, n] = a [m, k] b [k, n], plus bias [n] unless it is null.
void multiply(SumOrder order, const float* a, const float* b, const float* bias, float* c, std::int64_t m,
              std::int64_t k, std::int64_t n);

/// c [m, n] += a^T b for a [k, m], b [k, n]. Each sum is one block, complete before it is added to c. Rows of
/// c are read and written once, in order.
void add_outer_products(const float* a, const float* b, float* c, std::int64_t m, std::int64_t k,
                        std::int64_t n);

}  // namespace millrace
