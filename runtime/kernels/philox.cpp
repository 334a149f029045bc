#include "runtime/kernels/philox.h"

#include <algorithm>
#include <cmath>

#include "runtime/kernels/widest_vectors.h"

namespace millrace {
namespace {

/// Returns the words of `Lanes` counters at a time, word by word.
template <int Lanes>
struct Words {
  std::uint32_t of[4][Lanes];
};

template <int Lanes>
inline __attribute__((always_inline)) void draw(Words<Lanes>& words, std::uint64_t counter,
                                                std::uint64_t key) {
  auto& w = words.of;
  for (int lane = 0; lane < Lanes; ++lane) {
    const std::uint64_t own = counter + static_cast<std::uint64_t>(lane);
    w[0][lane] = static_cast<std::uint32_t>(own);
    w[1][lane] = static_cast<std::uint32_t>(own >> 32);
    w[2][lane] = w[3][lane] = 0;
  }
  auto low = static_cast<std::uint32_t>(key), high = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round, low += 0x9E3779B9U, high += 0xBB67AE85U) {
    for (int lane = 0; lane < Lanes; ++lane) {
      const std::uint64_t a = std::uint64_t{0xD2511F53U} * w[0][lane],
                          b = std::uint64_t{0xCD9E8D57U} * w[2][lane];
      w[0][lane] = static_cast<std::uint32_t>(b >> 32) ^ w[1][lane] ^ low;
      w[1][lane] = static_cast<std::uint32_t>(b);
      w[2][lane] = static_cast<std::uint32_t>(a >> 32) ^ w[3][lane] ^ high;
      w[3][lane] = static_cast<std::uint32_t>(a);
    }
  }
}

constexpr int kLanes = 16;

MILLRACE_WIDEST_VECTORS void fill(float* values, std::int64_t count, std::uint32_t last_kept, float kept,
                                  std::uint64_t key) {
  Words<kLanes> words;
  std::uint64_t counter = 0;
  for (std::int64_t first = 0; first < count; first += 4 * kLanes, counter += kLanes) {
    draw(words, counter, key);
    const std::int64_t own = std::min<std::int64_t>(4 * kLanes, count - first);
    const std::uint32_t* word = &words.of[0][0];
    for (std::int64_t i = 0; i < own; ++i) values[first + i] = word[i] <= last_kept ? kept : 0;
  }
}

}  // namespace

std::array<std::uint32_t, 4> philox(std::uint64_t counter, std::uint64_t key) {
  Words<1> words;
  draw(words, counter, key);
  return {words.of[0][0], words.of[1][0], words.of[2][0], words.of[3][0]};
}

void draw_mask(float* values, std::int64_t count, double p, float kept, std::uint64_t key) {
  const double of_all = std::round((1 - p) * 0x1p32);  // out of 2^32 words
  if (of_all < 1)
    std::fill_n(values, count, 0.0F);
  else
    fill(values, count, static_cast<std::uint32_t>(of_all - 1), kept, key);
}

}  // namespace millrace
