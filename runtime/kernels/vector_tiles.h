// The loops of vector_products.cpp for one kind of vector registers. That file includes this one once per
// kind, each time in another namespace, after it has defined
//   MILLRACE_VECTOR  the attribute that lets the compiler use those instructions,
//   Vector, Mask     a register of kLane floats; the active floats of one,
//   kLane, kRows     floats per register; the rows of a tile whose 3 kRows sums fit into the registers,
//   kRowsByTwo, kRowsByOne  the rows of a tile that is two vectors wide and one vector wide,
//   load, load_part, store, store_part, set1, zero, fma, add, mask_of, all, turn_over.
// There is no include guard, because the file is meant to be included twice.

#define MILLRACE_VECTOR_INLINE MILLRACE_VECTOR inline __attribute__((always_inline))

constexpr std::int64_t kPanel = 3 * kLane;  // columns of a tile
constexpr std::int64_t kAhead = kPanel;     // floats per prefetch

inline std::int64_t vectors_of(std::int64_t columns) {
  return (columns + kLane - 1) / kLane;
}

/// Memory after the current tile, prefetched while the tile is summed: kAhead floats per prefetch.
struct Ahead {
  const float* at;
  std::int64_t row;  ///< floats between two prefetches
};

template <_mm_hint Near>
MILLRACE_VECTOR_INLINE void look(Ahead& ahead) {
  for (std::int64_t line = 0; line < kAhead; line += kLine)
    _mm_prefetch(reinterpret_cast<const char*>(ahead.at + line), Near);
  ahead.at += ahead.row;
}

/// Reads elements [r, q] of a row-major left matrix. A pointer serves three rows: with more pointers than
/// registers, the compiler would reload them at every step.
template <int R>
struct ByRows {
  static constexpr bool kTogether = true;  // several steps are taken before the pointers advance
  static constexpr int kThree = 3, kPointers = (R + kThree - 1) / kThree;
  MILLRACE_VECTOR_INLINE ByRows(const float* a, std::int64_t row) : bytes(row * std::int64_t(sizeof(float))) {
#pragma GCC unroll 6
    for (int i = 0; i < kPointers; ++i) {
      at[i] = a + i * kThree * row;
      asm("" : "+r"(at[i]));  // keeps the compiler from deriving one pointer from another
    }
    asm("" : "+r"(bytes));
  }
  MILLRACE_VECTOR_INLINE float get(int r, int q) const {
    const char* first = reinterpret_cast<const char*>(at[r / kThree] + q);
    return *reinterpret_cast<const float*>(first + r % kThree * bytes);
  }
  MILLRACE_VECTOR_INLINE void advance(int steps) {
#pragma GCC unroll 6
    for (int i = 0; i < kPointers; ++i) at[i] += steps;
  }
  const float* at[kPointers];
  std::int64_t bytes;
};
/// Reads elements [r, q] of a column-major left matrix with columns `column` floats apart.
struct ByColumns {
  static constexpr bool kTogether = false;
  MILLRACE_VECTOR_INLINE float get(int r, int) const { return at[r]; }
  MILLRACE_VECTOR_INLINE void advance(int) {
    at += column;
    asm("" : "+r"(at));
  }
  const float* at;
  std::int64_t column;
};

/// Computes sums [R, V vectors] += a [R, q] b [q, V vectors]. Unless `Whole`, the last vector has only the
/// columns in `last`.
template <bool Whole, int R, int V, class Left>
MILLRACE_VECTOR_INLINE void add_step(Vector (&sums)[R][V], const Left& a, int q, const float* b, Mask last) {
  Vector columns[V];
#pragma GCC unroll 3
  for (int v = 0; v < V; ++v)
    columns[v] = Whole || v + 1 < V ? load(b + v * kLane) : load_part(last, b + v * kLane);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const Vector one = set1(a.get(r, q));
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) sums[r][v] = fma(one, columns[v], sums[r][v]);
  }
}

/// Computes sums [R, V vectors] = a [R, k] b [k, V vectors]. Rows of b are `row` floats apart.
template <_mm_hint Near, bool Whole, int R, int V, class Left>
MILLRACE_VECTOR_INLINE void sum_tile(Vector (&sums)[R][V], Left a, const float* b, std::int64_t row,
                                     std::int64_t k, Mask last, Ahead ahead) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) sums[r][v] = zero();
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

/// A matrix of `rows` rows and `columns` columns; its rows are `row` floats apart.
struct From {
  const float* at;
  std::int64_t row, rows, columns;
};
struct To {
  float* at;
  std::int64_t row, rows, columns;
};

/// Writes the transpose of up to [kLane, kLane] floats, with zeros for rows and columns that `from` lacks.
MILLRACE_VECTOR inline void transpose(const From& from, const To& to) {
  const Mask read = mask_of(from.columns), written = mask_of(to.columns);
  Vector block[kLane];
#pragma GCC unroll 16
  for (int i = 0; i < kLane; ++i) {
    if (i >= from.rows)
      block[i] = zero();
    else
      block[i] =
          from.columns >= kLane ? load(from.at + i * from.row) : load_part(read, from.at + i * from.row);
  }
  turn_over(block);
#pragma GCC unroll 16
  for (int i = 0; i < kLane; ++i) {
    if (i >= to.rows) continue;
    if (to.columns >= kLane)
      store(to.at + i * to.row, block[i]);
    else
      store_part(to.at + i * to.row, written, block[i]);
  }
}

/// Computes to [R, V vectors] += w [R, k] x [k, V vectors]; x is dense.
template <int R, int V>
MILLRACE_VECTOR void add_rows_by_columns(SumOrder order, const float* w, std::int64_t k, const float* x,
                                         float* to) {
  for (std::int64_t begin = 0, block; begin < k; begin += block) {
    block = block_by_rows(order, k - begin, k);
    Vector sums[R][V];
    const Ahead ahead{w + R * (k + begin), R * kSteps};  // covers the whole next tile, as R kSteps < kAhead
    sum_tile<_MM_HINT_T1, true>(sums, ByRows<R>(w + begin, k), x + begin * V * kLane, V * kLane, block, all(),
                                ahead);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) {
        float* sum = to + (r * V + v) * kLane;
        store(sum, add(load(sum), sums[r][v]));
      }
    }
  }
}

/// The number of outputs that are transposed together: a multiple of each tile size and of the vector length.
constexpr std::int64_t kTurned = 48;
static_assert(kTurned % kRowsByTwo == 0 && kTurned % kRowsByOne == 0 && kTurned % kLane == 0);

/// Rows of a result [rows, n] and of their initial values, which are `added_row` floats apart; 0: all rows
/// share the same values.
struct Outputs {
  const float* added;
  std::int64_t added_row;
  float* y;
  std::int64_t rows, n;
};

/// Computes `count` columns of the result added + x w^T, for up to V vectors of rows. `x` is already
/// transposed to [k, V vectors].
template <int V>
MILLRACE_VECTOR void outputs(SumOrder order, const float* x, const float* w, std::int64_t k,
                             const Outputs& to, std::int64_t count) {
  constexpr int kTile = V == 2 ? kRowsByTwo : kRowsByOne;
  alignas(kAlignment) float turned[kTurned * V * kLane];
  for (std::int64_t o = 0; o < count; o += kLane) {
    for (std::int64_t r = 0; r < V * kLane; r += kLane) {
      float* block = turned + o * V * kLane + r;
      if (to.added_row != 0) {
        transpose({to.added + r * to.added_row + o, to.added_row, to.rows - r, count - o},
                  {block, V * kLane, count - o, kLane});
        continue;
      }
      for (std::int64_t i = o; i < std::min(count, o + kLane); ++i, block += V * kLane)
        store(block, set1(to.added[i]));
    }
  }
  std::int64_t done = 0;
  for (; done + kTile <= count; done += kTile)
    add_rows_by_columns<kTile, V>(order, w + done * k, k, x, turned + done * V * kLane);
  for (; done + 4 <= count; done += 4)
    add_rows_by_columns<4, V>(order, w + done * k, k, x, turned + done * V * kLane);
  for (; done < count; ++done)
    add_rows_by_columns<1, V>(order, w + done * k, k, x, turned + done * V * kLane);
  for (std::int64_t o = 0; o < count; o += kLane) {
    for (std::int64_t r = 0; r < to.rows; r += kLane)
      transpose({turned + o * V * kLane + r, V * kLane, count - o, kLane},
                {to.y + r * to.n + o, to.n, to.rows - r, count - o});
  }
}

/// The arguments of c [m, V vectors] = a [m, k] b [k, V vectors], plus add [V vectors] unless it is null. The
/// last vector has only the columns in `last`.
struct Panel {
  const float *a, *b, *add;
  float* c;
  std::int64_t m, k, n;
  Mask last;
  SumOrder order;
};
template <int R, int V, bool Whole>
MILLRACE_VECTOR void multiply_tile(const Panel& p, std::int64_t row) {
  // Each of the first blocks of rows prefetches a part of the next panel.
  const float* next = p.b + V * kLane + row / R * (p.k / kSteps) % p.k * p.n;
  for (std::int64_t begin = 0, block; begin < p.k; begin += block) {
    block = block_by_columns(p.order, p.k - begin, p.k);
    Vector sums[R][V];
    sum_tile<_MM_HINT_T1, Whole>(sums, ByRows<R>(p.a + row * p.k + begin, p.k), p.b + begin * p.n, p.n, block,
                                 p.last, {next + begin / kSteps * p.n, p.n});
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) {
        float* c = p.c + (row + r) * p.n + v * kLane;
        const bool whole = Whole || v + 1 < V;
        const float* before = begin == 0 ? p.add ? p.add + v * kLane : nullptr : c;
        if (before) sums[r][v] = add(whole ? load(before) : load_part(p.last, before), sums[r][v]);
        whole ? store(c, sums[r][v]) : store_part(c, p.last, sums[r][v]);
      }
    }
  }
}
template <int V, bool Whole>
MILLRACE_VECTOR void multiply_panel(const Panel& p) {
  std::int64_t row = 0;
  for (; row + kRows <= p.m; row += kRows) multiply_tile<kRows, V, Whole>(p, row);
  if constexpr (kRows > 4)
    for (; row + 4 <= p.m; row += 4) multiply_tile<4, V, Whole>(p, row);
  for (; row < p.m; ++row) multiply_tile<1, V, Whole>(p, row);
}

/// The arguments of c [kRows, V vectors] += a^T b for a [k, kRows], b [k, V vectors]. Only the first `rows`
/// rows of c are written; they are `row` floats apart. The last vector has only the columns in `last`.
struct Tile {
  ByColumns a;
  const float* b;
  std::int64_t b_row, k;
  float* c;
  std::int64_t row, rows;
  Mask last;
  const float* next;  ///< next tile in c, to be prefetched
};
template <int V, bool Whole>
MILLRACE_VECTOR void add_tile(const Tile& t) {
  Vector sums[kRows][V];
  sum_tile<_MM_HINT_T0, Whole>(sums, t.a, t.b, t.b_row, t.k, t.last, {t.next, t.row});
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    if (r == t.rows) return;
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) {
      float* c = t.c + r * t.row + v * kLane;
      if (Whole || v + 1 < V)
        store(c, add(load(c), sums[r][v]));
      else
        store_part(c, t.last, add(load_part(t.last, c), sums[r][v]));
    }
  }
}

/// Returns the number of columns of the next panel. The last four vectors are split into two and two, because
/// a single vector does not keep the arithmetic units busy.
inline std::int64_t width_of(std::int64_t left) {
  return left == kPanel + kLane ? 2 * kLane : std::min(kPanel, left);
}

/// Calls `of` with the number of vectors in `columns` and whether all of them are whole, as constants.
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
inline Mask last_of(std::int64_t columns) {
  return mask_of(columns - (vectors_of(columns) - 1) * kLane);
}

/// Copies b [k, columns], whose rows are `row` floats apart, to [k, whole vectors] with zeros at the end.
MILLRACE_VECTOR inline void pack(const float* b, std::int64_t row, std::int64_t k, std::int64_t columns,
                                 float* to) {
  const std::int64_t vectors = vectors_of(columns);
  const bool whole = columns % kLane == 0;
  const Mask last = last_of(columns);
  for (std::int64_t q = 0; q < k; ++q, b += row) {
    for (std::int64_t v = 0; v < vectors; ++v, to += kLane)
      store(to, whole || v + 1 < vectors ? load(b + v * kLane) : load_part(last, b + v * kLane));
  }
}

/// Transposes x [rows, k] to [k, V vectors] with zeros at the end.
template <int V>
MILLRACE_VECTOR void turn_rows(const float* x, std::int64_t rows, std::int64_t k, float* to) {
  for (std::int64_t q = 0; q < k; q += kLane) {
    for (std::int64_t r = 0; r < V * kLane; r += kLane)
      transpose({x + r * k + q, k, rows - r, k - q}, {to + q * V * kLane + r, V * kLane, k - q, kLane});
  }
}

inline void multiply_by_rows(SumOrder order, const float* x, const float* w, const float* added,
                             std::int64_t added_row, float* y, std::int64_t m, std::int64_t k,
                             std::int64_t n) {
  constexpr std::int64_t kMost = 2 * kLane;  // rows at a time; the last rows may be one vector
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
      (to.rows > kLane ? outputs<2> : outputs<1>)(order, turned + r * k, w + o * k, k, to, count);
    }
  };
  at::parallel_for(0, (n + kTurned - 1) / kTurned, grain(kTurned * m * k),
                   [&](std::int64_t first, std::int64_t last) {
                     for (std::int64_t i = first; i < last; ++i) columns(i * kTurned);
                   });
}

inline void multiply(SumOrder order, const float* a, const float* b, const float* bias, float* c,
                     std::int64_t m, std::int64_t k, std::int64_t n) {
  const std::int64_t panels = (n + kPanel - 1) / kPanel;
  at::parallel_for(0, panels, grain(m * k * kPanel), [&](std::int64_t first, std::int64_t last) {
    const std::int64_t end = std::min(n, last * kPanel);
    for (std::int64_t column = first * kPanel, width; column < end; column += width) {
      width = width_of(end - column);
      const float* add = bias ? bias + column : nullptr;
      const Panel panel{a, b + column, add, c + column, m, k, n, last_of(width), order};
      by_vectors(width, [&](auto v, auto whole) { multiply_panel<v, whole>(panel); });
    }
  });
}

inline void add_outer_products(const float* a, const float* b, float* c, std::int64_t m, std::int64_t k,
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

#undef MILLRACE_VECTOR_INLINE
