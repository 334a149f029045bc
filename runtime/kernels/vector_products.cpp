#include "runtime/kernels/vector_products.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <string_view>
#include <type_traits>

#include <ATen/Parallel.h>
#include <ATen/Version.h>

#include "runtime/base/check.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define MILLRACE_VECTORS
#include <immintrin.h>
#endif

namespace millrace {

#ifdef MILLRACE_VECTORS
namespace {

constexpr std::int64_t kCached = 1 << 17;  // floats of b: a part of the L2 cache
// Matrices with at most this many rows are read in place. With more rows, a power of two of bytes apart, rows
// would evict each other from the L1 cache.
constexpr std::int64_t kMostUnpacked = 40;
constexpr std::size_t kAlignment = 64;  // bytes
constexpr std::int64_t kLine = 16;      // floats of a cache line
constexpr int kSteps = 4;               // steps of a sum between two prefetches

/// A thread's memory for panels. It only grows.
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

/// Return the length of the next block of a sum of k products, `left` of which remain. block_by_columns() has
/// the blocks of x W. block_by_rows() has those of x W^T, whose right matrix is row-major. SumOrder::Of192
/// has the same blocks for both.
std::int64_t block_of_192(std::int64_t left, std::int64_t k) {
  constexpr std::int64_t kBlock = 192;
  return std::min(left, k <= kBlock ? k : k < 2 * kBlock ? k / 2 : kBlock);
}
std::int64_t block_by_columns(SumOrder order, std::int64_t left, std::int64_t k) {
  constexpr std::int64_t kBlock = 384;
  if (order == SumOrder::Of192) return block_of_192(left, k);
  return left <= kBlock ? left : left < 2 * kBlock ? (left + 1) / 2 : kBlock;
}
/// With SumOrder::Of384, x W^T has halves only if the whole sum is shorter than two blocks.
std::int64_t block_by_rows(SumOrder order, std::int64_t left, std::int64_t k) {
  constexpr std::int64_t kBlock = 384;
  if (order == SumOrder::Of192) return block_of_192(left, k);
  return k < 2 * kBlock ? block_by_columns(order, left, k) : std::min(kBlock, left);
}

/// The smallest number of multiplications for which a thread is woken.
constexpr std::int64_t kOfAThread = 1 << 18;
std::int64_t grain(std::int64_t multiplications) {
  return std::max<std::int64_t>(1, kOfAThread / std::max<std::int64_t>(1, multiplications));
}

namespace avx512 {

#define MILLRACE_VECTOR __attribute__((target("avx512f")))
#define MILLRACE_OPERATION MILLRACE_VECTOR inline __attribute__((always_inline))
using Vector = __m512;
using Mask = __mmask16;
constexpr std::int64_t kLane = 16;
constexpr int kRows = 8;  // 24 of the 32 registers hold sums
constexpr int kRowsByTwo = 12, kRowsByOne = 16;

inline Mask mask_of(std::int64_t columns) {
  return columns >= kLane ? 0xFFFF : static_cast<Mask>((1 << columns) - 1);
}
inline Mask all() {
  return 0xFFFF;
}
MILLRACE_OPERATION Vector load(const float* from) {
  return _mm512_loadu_ps(from);
}
MILLRACE_OPERATION Vector load_part(Mask mask, const float* from) {
  return _mm512_maskz_loadu_ps(mask, from);
}
MILLRACE_OPERATION void store(float* to, Vector v) {
  _mm512_storeu_ps(to, v);
}
MILLRACE_OPERATION void store_part(float* to, Mask mask, Vector v) {
  _mm512_mask_storeu_ps(to, mask, v);
}
MILLRACE_OPERATION Vector set1(float value) {
  return _mm512_set1_ps(value);
}
MILLRACE_OPERATION Vector zero() {
  return _mm512_setzero_ps();
}
MILLRACE_OPERATION Vector fma(Vector a, Vector b, Vector c) {
  return _mm512_fmadd_ps(a, b, c);
}
MILLRACE_OPERATION Vector add(Vector a, Vector b) {
  return _mm512_add_ps(a, b);
}

/// Transposes 16 vectors in place.
MILLRACE_OPERATION void turn_over(Vector (&r)[kLane]) {
  Vector t[kLane];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {  // pairs of rows
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {  // fours
    for (int half = 0; half < 2; ++half) {
      const __m512d a = _mm512_castps_pd(t[i + half]), b = _mm512_castps_pd(t[i + half + 2]);
      r[i + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
      r[i + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // eights
    for (int half = 0; half < 16; half += 8) {
      t[i + half] = _mm512_shuffle_f32x4(r[i + half], r[i + half + 4], 0x88);
      t[i + half + 4] = _mm512_shuffle_f32x4(r[i + half], r[i + half + 4], 0xdd);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
  }
}

#include "runtime/kernels/vector_tiles.h"
#undef MILLRACE_OPERATION
#undef MILLRACE_VECTOR
}  // namespace avx512

namespace avx2 {

#define MILLRACE_VECTOR __attribute__((target("avx2,fma")))
#define MILLRACE_OPERATION MILLRACE_VECTOR inline __attribute__((always_inline))
using Vector = __m256;
using Mask = const std::int32_t*;  // 8 words, negative for each active float
constexpr std::int64_t kLane = 8;
constexpr int kRows = 4;  // 12 of the 16 registers hold sums
constexpr int kRowsByTwo = 6, kRowsByOne = 12;

inline Mask mask_of(std::int64_t columns) {
  static constexpr std::int32_t kMasks[2 * kLane] = {-1, -1, -1, -1, -1, -1, -1, -1};
  return kMasks + kLane - std::min(kLane, columns);
}
inline Mask all() {
  return mask_of(kLane);
}
MILLRACE_OPERATION __m256i words(Mask mask) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(mask));
}
MILLRACE_OPERATION Vector load(const float* from) {
  return _mm256_loadu_ps(from);
}
MILLRACE_OPERATION Vector load_part(Mask mask, const float* from) {
  return _mm256_maskload_ps(from, words(mask));
}
MILLRACE_OPERATION void store(float* to, Vector v) {
  _mm256_storeu_ps(to, v);
}
MILLRACE_OPERATION void store_part(float* to, Mask mask, Vector v) {
  _mm256_maskstore_ps(to, words(mask), v);
}
MILLRACE_OPERATION Vector set1(float value) {
  return _mm256_set1_ps(value);
}
MILLRACE_OPERATION Vector zero() {
  return _mm256_setzero_ps();
}
MILLRACE_OPERATION Vector fma(Vector a, Vector b, Vector c) {
  return _mm256_fmadd_ps(a, b, c);
}
MILLRACE_OPERATION Vector add(Vector a, Vector b) {
  return _mm256_add_ps(a, b);
}

/// Transposes 8 vectors in place.
MILLRACE_OPERATION void turn_over(Vector (&r)[kLane]) {
  Vector t[kLane];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {  // pairs of rows
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {  // fours
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // eights
    t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
    t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) r[i] = t[i];
}

#include "runtime/kernels/vector_tiles.h"
#undef MILLRACE_OPERATION
#undef MILLRACE_VECTOR
}  // namespace avx2

enum class Width { None, Avx2, Avx512 };

/// Returns the widest vectors that both the processor has and LibTorch uses: ATEN_CPU_CAPABILITY bounds both.
Width width() {
  static const Width found = [] {
    const std::string_view allowed = at::get_cpu_capability();
    if (allowed == "AVX512" && __builtin_cpu_supports("avx512f")) return Width::Avx512;
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return has_avx2 && (allowed == "AVX512" || allowed == "AVX2") ? Width::Avx2 : Width::None;
  }();
  return found;
}

}  // namespace

bool has_vector_products() {
  return width() != Width::None;
}

void multiply_by_rows(SumOrder order, const float* x, const float* w, const float* added,
                      std::int64_t added_row, float* y, std::int64_t m, std::int64_t k, std::int64_t n) {
  const auto by = width() == Width::Avx512 ? avx512::multiply_by_rows : avx2::multiply_by_rows;
  by(order, x, w, added, added_row, y, m, k, n);
}

void multiply(SumOrder order, const float* a, const float* b, const float* bias, float* c, std::int64_t m,
              std::int64_t k, std::int64_t n) {
  const auto by = width() == Width::Avx512 ? avx512::multiply : avx2::multiply;
  by(order, a, b, bias, c, m, k, n);
}

void add_outer_products(const float* a, const float* b, float* c, std::int64_t m, std::int64_t k,
                        std::int64_t n) {
  const auto by = width() == Width::Avx512 ? avx512::add_outer_products : avx2::add_outer_products;
  by(a, b, c, m, k, n);
}

#else

bool has_vector_products() {
  return false;
}
void multiply_by_rows(SumOrder, const float*, const float*, const float*, std::int64_t, float*, std::int64_t,
                      std::int64_t, std::int64_t) {
  MILLRACE_CHECK(false, "no vectors of AVX2 or AVX-512");
}
void multiply(SumOrder, const float*, const float*, const float*, float*, std::int64_t, std::int64_t,
              std::int64_t) {
  MILLRACE_CHECK(false, "no vectors of AVX2 or AVX-512");
}
void add_outer_products(const float*, const float*, float*, std::int64_t, std::int64_t, std::int64_t) {
  MILLRACE_CHECK(false, "no vectors of AVX2 or AVX-512");
}

#endif

}  // namespace millrace
