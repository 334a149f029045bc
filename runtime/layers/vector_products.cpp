#include "runtime/layers/vector_products.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>

#include <ATen/Parallel.h>

#include "runtime/base/check.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define MILLRACE_AVX512 __attribute__((target("avx512f")))
#define MILLRACE_AVX512_INLINE MILLRACE_AVX512 inline __attribute__((always_inline))
#include <immintrin.h>
#endif

namespace millrace {

#ifdef MILLRACE_AVX512
namespace {

constexpr std::int64_t kLane = 16;          // floats of a vector
constexpr std::int64_t kPanel = 3 * kLane;  // columns: with 8 rows 24 of the 32 registers hold sums
constexpr int kRows = 8;
constexpr std::int64_t kCached = 1 << 17;  // floats of b: a part of the second cache
// Rows beyond which, a power of two of bytes apart, they would push each other out of the first cache.
constexpr std::int64_t kMostUnpacked = 40;
constexpr __mmask16 kAll = 0xFFFF;
constexpr std::size_t kAlignment = 64;      // bytes
constexpr int kSteps = 4;                   // of a sum, between two looks ahead
constexpr std::int64_t kAhead = 3 * kLane;  // floats of a look ahead

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

__mmask16 mask_of(std::int64_t columns) {
  return columns >= kLane ? kAll : static_cast<__mmask16>((1 << columns) - 1);
}

/// Memory that is asked for while a tile is summed, for what comes after it: kAhead floats at every look.
struct Ahead {
  const float* at;
  std::int64_t row;  ///< floats between two looks
};

template <_mm_hint Near>
MILLRACE_AVX512_INLINE void look(Ahead& ahead) {
  for (std::int64_t line = 0; line < kAhead; line += kLane)
    _mm_prefetch(reinterpret_cast<const char*>(ahead.at + line), Near);
  ahead.at += ahead.row;
}

/// Elements [r, q] of a left matrix that lie by rows: by three, since more pointers than there are registers
/// would be read again at every step.
template <int R>
struct ByRows {
  static constexpr bool kTogether = true;  // of some steps without moving
  static constexpr int kThree = 3, kPointers = (R + kThree - 1) / kThree;
  MILLRACE_AVX512_INLINE ByRows(const float* a, std::int64_t row) : bytes(row * std::int64_t(sizeof(float))) {
#pragma GCC unroll 6
    for (int i = 0; i < kPointers; ++i) {
      at[i] = a + i * kThree * row;
      asm("" : "+r"(at[i]));  // none made of another
    }
    asm("" : "+r"(bytes));
  }
  MILLRACE_AVX512_INLINE float get(int r, int q) const {
    const char* first = reinterpret_cast<const char*>(at[r / kThree] + q);
    return *reinterpret_cast<const float*>(first + r % kThree * bytes);
  }
  MILLRACE_AVX512_INLINE void advance(int steps) {
#pragma GCC unroll 6
    for (int i = 0; i < kPointers; ++i) at[i] += steps;
  }
  const float* at[kPointers];
  std::int64_t bytes;
};
/// And that lie by columns, `column` floats apart.
struct ByColumns {
  static constexpr bool kTogether = false;
  MILLRACE_AVX512_INLINE float get(int r, int) const { return at[r]; }
  MILLRACE_AVX512_INLINE void advance(int) {
    at += column;
    asm("" : "+r"(at));
  }
  const float* at;
  std::int64_t column;
};

/// sums [R, 16 V] += a [R, q] b [q, 16 V]; of the last vector, unless it is whole, the columns of `last`.
template <bool Whole, int R, int V, class Left>
MILLRACE_AVX512_INLINE void add_step(__m512 (&sums)[R][V], const Left& a, int q, const float* b,
                                     __mmask16 last) {
  __m512 columns[V];
#pragma GCC unroll 3
  for (int v = 0; v < V; ++v)
    columns[v] =
        Whole || v + 1 < V ? _mm512_loadu_ps(b + v * kLane) : _mm512_maskz_loadu_ps(last, b + v * kLane);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const __m512 one = _mm512_set1_ps(a.get(r, q));
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) sums[r][v] = _mm512_fmadd_ps(one, columns[v], sums[r][v]);
  }
}

/// sums [R, 16 V] = a [R, k] b [k, 16 V], rows of b `row` floats apart.
template <_mm_hint Near, bool Whole, int R, int V, class Left>
MILLRACE_AVX512_INLINE void sum_tile(__m512 (&sums)[R][V], Left a, const float* b, std::int64_t row,
                                     std::int64_t k, __mmask16 last, Ahead ahead) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) sums[r][v] = _mm512_setzero_ps();
  }
  std::int64_t q = 0;
  for (; q + kSteps <= k; q += kSteps) {
#pragma GCC unroll 4
    for (int i = 0; i < kSteps; ++i, b += row) {
      add_step<Whole>(sums, a, Left::kTogether ? i : 0, b, last);
      if (!Left::kTogether) a.advance(1);
    }
    if (Left::kTogether) a.advance(kSteps);
    look<Near>(ahead);
  }
  for (; q < k; ++q, a.advance(1), b += row) add_step<Whole>(sums, a, 0, b, last);
}

/// 16 vectors as rows -> as columns.
MILLRACE_AVX512_INLINE void turn_over(__m512 (&r)[kLane]) {
  __m512 t[kLane];
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

/// Rows of `row` floats, of which so many, of the columns of a mask.
struct From {
  const float* at;
  std::int64_t row, rows;
  __mmask16 columns;
};
struct To {
  float* at;
  std::int64_t row, rows;
  __mmask16 columns;
};

/// The transpose of up to [16, 16], zeros for what is not there.
MILLRACE_AVX512 void transpose(const From& from, const To& to) {
  __m512 block[kLane];
#pragma GCC unroll 16
  for (int i = 0; i < kLane; ++i)
    block[i] =
        i < from.rows ? _mm512_maskz_loadu_ps(from.columns, from.at + i * from.row) : _mm512_setzero_ps();
  turn_over(block);
#pragma GCC unroll 16
  for (int i = 0; i < kLane; ++i)
    if (i < to.rows) _mm512_mask_storeu_ps(to.at + i * to.row, to.columns, block[i]);
}

/// Columns of w that are added up as one, of so many that are left: the blocks of the BLAS.
constexpr std::int64_t kBlock = 384;
std::int64_t block_of(std::int64_t left) {
  return left <= kBlock ? left : left < 2 * kBlock ? (left + 1) / 2 : kBlock;
}
/// And where w lies by rows: halves only of what is less than two blocks from the start.
std::int64_t block_by_rows(std::int64_t left, std::int64_t k) {
  return k < 2 * kBlock ? block_of(left) : std::min(kBlock, left);
}

/// to [R, 16 V] += w [R, k] x [k, 16 V], x dense and aligned.
template <int R, int V>
MILLRACE_AVX512 void add_rows_by_columns(const float* w, std::int64_t k, const float* x, float* to) {
  for (std::int64_t begin = 0, block; begin < k; begin += block) {
    block = block_by_rows(k - begin, k);
    __m512 sums[R][V];
    const Ahead ahead{w + R * (k + begin), R * kSteps};  // less than kAhead: all of the next tile
    sum_tile<_MM_HINT_T1, true>(sums, ByRows<R>(w + begin, k), x + begin * V * kLane, V * kLane, block, kAll,
                                ahead);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) {
        float* sum = to + (r * V + v) * kLane;
        _mm512_store_ps(sum, _mm512_add_ps(_mm512_load_ps(sum), sums[r][v]));
      }
    }
  }
}

/// Outputs that are turned over together: whole tiles of 12 and of 16, whole vectors.
constexpr std::int64_t kTurned = 48;

/// Rows of a result [rows, n] and what they begin with, `added_row` floats apart: 0 where all rows are one.
struct Outputs {
  const float* added;
  std::int64_t added_row;
  float* y;
  std::int64_t rows, n;
};

/// `count` columns of the result = added + x w^T of up to 16 V rows, turned over to x [k, 16 V].
template <int V>
MILLRACE_AVX512 void outputs(const float* x, const float* w, std::int64_t k, const Outputs& to,
                             std::int64_t count) {
  constexpr int kTile = V == 2 ? 12 : 16;
  alignas(kAlignment) float turned[kTurned * V * kLane];
  for (std::int64_t o = 0; o < count; o += kLane) {
    for (std::int64_t r = 0; r < V * kLane; r += kLane) {
      float* block = turned + o * V * kLane + r;
      if (to.added_row != 0) {
        transpose({to.added + r * to.added_row + o, to.added_row, to.rows - r, mask_of(count - o)},
                  {block, V * kLane, count - o, kAll});
        continue;
      }
      for (std::int64_t i = o; i < std::min(count, o + kLane); ++i, block += V * kLane)
        _mm512_store_ps(block, _mm512_set1_ps(to.added[i]));
    }
  }
  std::int64_t done = 0;
  const auto tiles = [&](auto size) {
    constexpr int kSize = decltype(size)::value;
    for (; done + kSize <= count; done += kSize)
      add_rows_by_columns<kSize, V>(w + done * k, k, x, turned + done * V * kLane);
  };
  tiles(std::integral_constant<int, kTile>());
  tiles(std::integral_constant<int, 4>());
  tiles(std::integral_constant<int, 1>());
  for (std::int64_t o = 0; o < count; o += kLane) {
    for (std::int64_t r = 0; r < to.rows; r += kLane)
      transpose({turned + o * V * kLane + r, V * kLane, count - o, kAll},
                {to.y + r * to.n + o, to.n, to.rows - r, mask_of(count - o)});
  }
}

/// c [m, 16 V] = add [16 V], unless null, + a [m, k] b [k, 16 V], of the last vector the columns of `last`.
struct Panel {
  const float *a, *b, *add;
  float* c;
  std::int64_t m, k, n;
  __mmask16 last;
};
template <int R, int V, bool Whole>
MILLRACE_AVX512 void multiply_tile(const Panel& p, std::int64_t row) {
  // Each of the first blocks of rows asks for a part of the next panel.
  const float* next = p.b + V * kLane + row / R * (p.k / kSteps) % p.k * p.n;
  for (std::int64_t begin = 0, block; begin < p.k; begin += block) {
    block = block_of(p.k - begin);
    __m512 sums[R][V];
    sum_tile<_MM_HINT_T1, Whole>(sums, ByRows<R>(p.a + row * p.k + begin, p.k), p.b + begin * p.n, p.n, block,
                                 p.last, {next + begin / kSteps * p.n, p.n});
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) {
        float* c = p.c + (row + r) * p.n + v * kLane;
        const __mmask16 mask = v + 1 == V ? p.last : kAll;
        const float* before = begin == 0 ? p.add ? p.add + v * kLane : nullptr : c;
        if (before) sums[r][v] = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, before), sums[r][v]);
        _mm512_mask_storeu_ps(c, mask, sums[r][v]);
      }
    }
  }
}
template <int V, bool Whole>
MILLRACE_AVX512 void multiply_panel(const Panel& p) {
  std::int64_t row = 0;
  for (; row + kRows <= p.m; row += kRows) multiply_tile<kRows, V, Whole>(p, row);
  for (; row + 4 <= p.m; row += 4) multiply_tile<4, V, Whole>(p, row);
  for (; row < p.m; ++row) multiply_tile<1, V, Whole>(p, row);
}

/// The first `rows` rows of c, of `row` floats each, [8, 16 V] += a^T b for a [k, 8], b [k, 16 V]; of the
/// last vector the columns of `last`.
struct Tile {
  ByColumns a;
  const float* b;
  std::int64_t b_row, k;
  float* c;
  std::int64_t row, rows;
  __mmask16 last;
  const float* next;  ///< in c
};
template <int V, bool Whole>
MILLRACE_AVX512 void add_tile(const Tile& t) {
  __m512 sums[kRows][V];
  sum_tile<_MM_HINT_T0, Whole>(sums, t.a, t.b, t.b_row, t.k, t.last, {t.next, t.row});
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

/// Of the next panel: of 64 columns that are left two times 32, as a single vector does not keep the
/// arithmetic busy.
std::int64_t width_of(std::int64_t left) {
  return left == kPanel + kLane ? 2 * kLane : std::min(kPanel, left);
}

/// Calls `of` with so many vectors of columns and whether all are whole, as constants.
template <class Of>
void by_vectors(std::int64_t columns, const Of& of) {
  using std::integral_constant;
  const auto given = [&](auto vectors) {
    columns == decltype(vectors)::value* kLane ? of(vectors, std::true_type())
                                               : of(vectors, std::false_type());
  };
  const std::int64_t vectors = vectors_of(columns);
  if (vectors == 1) return given(integral_constant<int, 1>());
  if (vectors == 2) return given(integral_constant<int, 2>());
  given(integral_constant<int, 3>());
}
__mmask16 last_of(std::int64_t columns) {
  return mask_of(columns - (vectors_of(columns) - 1) * kLane);
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

/// x [rows, k] -> [k, 16 V], zeros behind.
template <int V>
MILLRACE_AVX512 void turn_rows(const float* x, std::int64_t rows, std::int64_t k, float* to) {
  for (std::int64_t q = 0; q < k; q += kLane) {
    for (std::int64_t r = 0; r < V * kLane; r += kLane)
      transpose({x + r * k + q, k, rows - r, mask_of(k - q)},
                {to + q * V * kLane + r, V * kLane, k - q, kAll});
  }
}

/// Multiplications that are worth waking a thread.
constexpr std::int64_t kOfAThread = 1 << 18;
std::int64_t grain(std::int64_t multiplications) {
  return std::max<std::int64_t>(1, kOfAThread / std::max<std::int64_t>(1, multiplications));
}

}  // namespace

bool has_vector_products() {
  return __builtin_cpu_supports("avx512f");
}

void multiply_by_rows(const float* x, const float* w, const float* added, std::int64_t added_row, float* y,
                      std::int64_t m, std::int64_t k, std::int64_t n) {
  constexpr std::int64_t kMost = 2 * kLane;  // rows at a time; the last may be one vector
  thread_local Room room;
  float* turned = room.of((m + kLane - 1) / kLane * kLane * k);
  for (std::int64_t r = 0; r < m; r += kMost) {
    const std::int64_t rows = std::min(kMost, m - r);
    (rows > kLane ? turn_rows<2> : turn_rows<1>)(x + r * k, rows, k, turned + r * k);
  }
  const auto columns = [&](std::int64_t o) {
    const std::int64_t count = std::min(kTurned, n - o);
    for (std::int64_t r = 0; r < m; r += kMost) {
      const Outputs to{added + r * added_row + o, added_row, y + r * n + o, std::min(kMost, m - r), n};
      (to.rows > kLane ? outputs<2> : outputs<1>)(turned + r * k, w + o * k, k, to, count);
    }
  };
  at::parallel_for(0, (n + kTurned - 1) / kTurned, grain(kTurned * m * k),
                   [&](std::int64_t first, std::int64_t last) {
                     for (std::int64_t i = first; i < last; ++i) columns(i * kTurned);
                   });
}

void multiply(const float* a, const float* b, const float* bias, float* c, std::int64_t m, std::int64_t k,
              std::int64_t n) {
  const std::int64_t panels = (n + kPanel - 1) / kPanel;
  at::parallel_for(0, panels, grain(m * k * kPanel), [&](std::int64_t first, std::int64_t last) {
    const std::int64_t end = std::min(n, last * kPanel);
    for (std::int64_t column = first * kPanel, width; column < end; column += width) {
      width = width_of(end - column);
      const float* add = bias ? bias + column : nullptr;
      const Panel panel{a, b + column, add, c + column, m, k, n, last_of(width)};
      by_vectors(width, [&](auto v, auto whole) { multiply_panel<v, whole>(panel); });
    }
  });
}

void add_outer_products(const float* a, const float* b, float* c, std::int64_t m, std::int64_t k,
                        std::int64_t n) {
  thread_local Room room_of_panels;
  const bool packed = k > kMostUnpacked;
  const std::int64_t most = packed ? std::max<std::int64_t>(1, kCached / (k * kPanel)) * kPanel : n;
  for (std::int64_t begin = 0, end; begin < n; begin = end) {
    end = std::min(n, begin + most);
    float* panels = packed ? room_of_panels.of(k * (end - begin + kPanel)) : nullptr;
    for (std::int64_t column = begin, width; packed && column < end; column += width) {
      width = width_of(end - column);
      pack(b + column, n, k, width, panels + (column - begin) * k);
    }
    const auto of_rows = [&](std::int64_t row) {
      thread_local Room room;
      const std::int64_t count = std::min<std::int64_t>(kRows, m - row);
      ByColumns rows{a + row, m};
      if (packed || count < kRows) {
        float* by_rows = room.of(k * kRows);
        for (std::int64_t q = 0; q < k; ++q) {
          std::copy_n(a + q * m + row, count, by_rows + q * kRows);
          std::fill(by_rows + q * kRows + count, by_rows + (q + 1) * kRows, 0.F);
        }
        rows = {by_rows, kRows};
      }
      for (std::int64_t column = begin, width; column < end; column += width) {
        width = width_of(end - column);
        float* to = c + row * n + column;
        const Tile tile{.a = rows,
                        .b = packed ? panels + (column - begin) * k : b + column,
                        .b_row = packed ? vectors_of(width) * kLane : n,
                        .k = k,
                        .c = to,
                        .row = n,
                        .rows = count,
                        .last = last_of(width),
                        .next = column + width < end ? to + width : c + (row + kRows) * n + begin};
        by_vectors(width, [&](auto v, auto whole) { add_tile<v, whole>(tile); });
      }
    };
    at::parallel_for(0, (m + kRows - 1) / kRows, grain(kRows * k * (end - begin)),
                     [&](std::int64_t first, std::int64_t last) {
                       for (std::int64_t block = first; block < last; ++block) of_rows(block * kRows);
                     });
  }
}

#else

bool has_vector_products() {
  return false;
}
void multiply_by_rows(const float*, const float*, const float*, std::int64_t, float*, std::int64_t,
                      std::int64_t, std::int64_t) {
  MILLRACE_CHECK(false, "no AVX-512");
}
void multiply(const float*, const float*, const float*, float*, std::int64_t, std::int64_t, std::int64_t) {
  MILLRACE_CHECK(false, "no AVX-512");
}
void add_outer_products(const float*, const float*, float*, std::int64_t, std::int64_t, std::int64_t) {
  MILLRACE_CHECK(false, "no AVX-512");
}

#endif

}  // namespace millrace
