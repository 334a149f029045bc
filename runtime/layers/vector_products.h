// The products of a linear layer in float32 by AVX-512. Every element is added up over the inner dimension
// in order by fused multiply-adds, whatever the number of threads, in blocks of 384 as LibTorch's BLAS does
// (and of the halves of what is less than two blocks), whose sums are added up in order. What the caches do
// not hold yet is asked for ahead of time, which a BLAS does not do: there they are faster. All are dense by
// rows, of any size, and shared by the intra-op threads. Thread-safe.
#pragma once

#include <cstdint>

namespace millrace {

/// Whether this processor (AVX-512) and this build have them.
bool has_vector_products();

/// y [m, n] = added + x [m, k] w^T for w [n, k]; rows of `added` are `added_row` floats apart, 0 for a bias
/// [n]. x is turned over instead of w, in the registers, 16 rows at a time: for few rows, and more than 8.
void multiply_by_rows(const float* x, const float* w, const float* added, std::int64_t added_row, float* y,
                      std::int64_t m, std::int64_t k, std::int64_t n);

/// c [m, n] = bias [n], or nothing where it is null, + a [m, k] b [k, n].
void multiply(const float* a, const float* b, const float* bias, float* c, std::int64_t m, std::int64_t k,
              std::int64_t n);

/// c [m, n] += a^T b for a [k, m], b [k, n]. An element's sum is complete before it is added to c; rows of c
/// are read and written once, in their order.
void add_outer_products(const float* a, const float* b, float* c, std::int64_t m, std::int64_t k,
                        std::int64_t n);

}  // namespace millrace
