#include "runtime/layers/outer_products.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include <ATen/Parallel.h>

#include "runtime/base/check.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define MILLRACE_AVX512 __attribute__((target("avx512f")))
#include <immintrin.h>
#endif

namespace millrace {

#ifdef MILLRACE_AVX512
namespace {

constexpr std::int64_t kLane = 16;          // floats of a vector
constexpr std::int64_t kPanel = 3 * kLane;  // columns: with 8 rows 24 of the 32 registers hold sums
constexpr int kRows = 8;
constexpr std::int64_t kCached = 1 << 17;  // floats of b: a part of the second cache
constexpr __mmask16 kAll = 0xFFFF;
constexpr std::size_t kAlignment = 64;  // bytes

/// Memory of a thread for panels; grows only.
class Room {
 public:
  float* of(std::int64_t floats) {
    if (floats > size_) {
      const std::size_t bytes = static_cast<std::size_t>(floats) * sizeof(float);
      memory_.reset(static_cast<float*>(
          std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment)));
      size_ = memory_ ? floats : 0;
      if (!memory_) throw std::bad_alloc();
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  std::unique_ptr<float[], Free> memory_;
  std::int64_t size_ = 0;
};

std::int64_t vectors_of(std::int64_t columns) {
  return (columns + kLane - 1) / kLane;
}

MILLRACE_AVX512 inline __mmask16 mask_of(std::int64_t columns) {
  return columns >= kLane ? kAll : static_cast<__mmask16>((1 << columns) - 1);
}

/// The first `rows` rows of c, of `row` floats each, [8, 16 V] += a^T b for a [k, 8], b [k, 16 V]; of the
/// last vector the columns of `last`.
struct Tile {
  const float *a, *b;
  std::int64_t k;
  float* c;
  std::int64_t row, rows;
  __mmask16 last;
};
template <int V>
MILLRACE_AVX512 void add_tile(const Tile& t) {
  __m512 sums[kRows][V];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) sums[r][v] = _mm512_setzero_ps();
  }
  const float *a = t.a, *b = t.b;
  for (std::int64_t q = 0; q < t.k; ++q, a += kRows, b += V * kLane) {
    __m512 columns[V];
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) columns[v] = _mm512_load_ps(b + v * kLane);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512 one = _mm512_set1_ps(a[r]);
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) sums[r][v] = _mm512_fmadd_ps(one, columns[v], sums[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    if (r == t.rows) return;
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) {
      float* c = t.c + r * t.row + v * kLane;
      const __mmask16 mask = v + 1 == V ? t.last : kAll;
      _mm512_mask_storeu_ps(c, mask, _mm512_add_ps(_mm512_maskz_loadu_ps(mask, c), sums[r][v]));
    }
  }
}

/// b [k, columns] of rows of `row` floats -> [k, 16 V], zeros behind.
MILLRACE_AVX512 void pack(const float* b, std::int64_t row, std::int64_t k, std::int64_t columns, float* to) {
  const std::int64_t vectors = vectors_of(columns);
  const __mmask16 last = mask_of(columns - (vectors - 1) * kLane);
  for (std::int64_t q = 0; q < k; ++q, b += row) {
    for (std::int64_t v = 0; v < vectors; ++v, to += kLane)
      _mm512_store_ps(to, _mm512_maskz_loadu_ps(v + 1 == vectors ? last : kAll, b + v * kLane));
  }
}

}  // namespace

bool has_outer_products() {
  return __builtin_cpu_supports("avx512f");
}

void add_outer_products(const float* a, const float* b, float* c, std::int64_t m, std::int64_t k,
                        std::int64_t n) {
  thread_local Room room_of_panels;
  const std::int64_t most = std::max<std::int64_t>(1, kCached / (k * kPanel)) * kPanel;
  for (std::int64_t begin = 0, end; begin < n; begin = end) {
    end = std::min(n, begin + most);
    float* panels = room_of_panels.of(k * (end - begin + kPanel));
    for (std::int64_t column = begin; column < end; column += kPanel)
      pack(b + column, n, k, std::min(kPanel, end - column), panels + (column - begin) * k);
    at::parallel_for(0, (m + kRows - 1) / kRows, 1, [&](std::int64_t first, std::int64_t last) {
      thread_local Room room;
      float* rows = room.of(k * kRows);
      for (std::int64_t row = first * kRows; row < std::min(last * kRows, m); row += kRows) {
        const std::int64_t count = std::min<std::int64_t>(kRows, m - row);
        for (std::int64_t q = 0; q < k; ++q) {
          std::copy_n(a + q * m + row, count, rows + q * kRows);
          std::fill(rows + q * kRows + count, rows + (q + 1) * kRows, 0.F);
        }
        for (std::int64_t column = begin; column < end; column += kPanel) {
          const std::int64_t columns = std::min(kPanel, end - column), vectors = vectors_of(columns);
          const Tile tile{.a = rows,
                          .b = panels + (column - begin) * k,
                          .k = k,
                          .c = c + row * n + column,
                          .row = n,
                          .rows = count,
                          .last = mask_of(columns - (vectors - 1) * kLane)};
          vectors == 1 ? add_tile<1>(tile) : vectors == 2 ? add_tile<2>(tile) : add_tile<3>(tile);
        }
      }
    });
  }
}

#else

bool has_outer_products() {
  return false;
}
void add_outer_products(const float*, const float*, float*, std::int64_t, std::int64_t, std::int64_t) {
  MILLRACE_CHECK(false, "no AVX-512");
}

#endif

}  // namespace millrace
