// Sums of outer products in float32: the weight gradients of a linear layer. Where the weights are more than
// the caches hold and the rows few, reading and writing the sum is what takes the time.
#pragma once

#include <cstdint>

namespace millrace {

/// Whether this processor (AVX-512) and this build have it.
bool has_outer_products();

/// c [m, n] += a^T b for a [k, m], b [k, n]; dense. An element is added up over k in order by fused
/// multiply-adds, and then added to c. Rows of c are read and written once, in their order, which BLAS,
/// cutting for reuse, does not. Intra-op threads share them. Thread-safe.
void add_outer_products(const float* a, const float* b, float* c, std::int64_t m, std::int64_t k,
                        std::int64_t n);

}  // namespace millrace
