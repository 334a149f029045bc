#include "runtime/metrics/numpy_random.h"

#include <array>

#include "runtime/base/check.h"

namespace millrace {
namespace {

constexpr std::size_t kPool = 4;

/// One of SeedSequence's two running hashes.
struct SeedHash {
  std::uint32_t constant, multiplier;
  std::uint32_t operator()(std::uint32_t value) {
    value ^= constant;
    constant *= multiplier;
    value *= constant;
    return value ^ value >> 16;
  }
};

std::array<std::uint64_t, 4> seed_words(std::uint64_t seed) {
  std::array<std::uint32_t, kPool> pool{static_cast<std::uint32_t>(seed),
                                        static_cast<std::uint32_t>(seed >> 32)};
  SeedHash hash{0x43b0d7e5, 0x931e8875};
  for (std::uint32_t& word : pool) word = hash(word);
  for (std::size_t from = 0; from < kPool; ++from) {
    for (std::size_t to = 0; to < kPool; ++to) {
      if (from == to) continue;
      const std::uint32_t mixed = 0xca01f9ddu * pool[to] - 0x4973f715u * hash(pool[from]);
      pool[to] = mixed ^ mixed >> 16;
    }
  }
  SeedHash output{0x8b51f9dd, 0x58f38ded};
  std::array<std::uint64_t, 4> words{};
  for (std::size_t i = 0; i < 2 * words.size(); ++i)
    words[i / 2] |= std::uint64_t{output(pool[i % kPool])} << (i % 2 * 32);
  return words;
}

}  // namespace

NumpyRandom::NumpyRandom(std::uint64_t seed) {
  const std::array<std::uint64_t, 4> words = seed_words(seed);
  increment_ = (Wide{words[2]} << 64 | words[3]) << 1 | 1;
  next_64();
  state_ += Wide{words[0]} << 64 | words[1];
  next_64();
}

std::uint64_t NumpyRandom::next_64() {
  constexpr Wide kMultiplier = Wide{2549297995355413924u} << 64 | 4865540595714422341u;
  state_ = state_ * kMultiplier + increment_;
  const auto value = static_cast<std::uint64_t>(state_ >> 64) ^ static_cast<std::uint64_t>(state_);
  const auto rotation = static_cast<unsigned>(state_ >> 122);
  return value >> rotation | value << (-rotation & 63);
}

std::uint32_t NumpyRandom::next_32() {
  if (has_half_) {
    has_half_ = false;
    return half_;
  }
  const std::uint64_t both = next_64();
  half_ = static_cast<std::uint32_t>(both >> 32);
  has_half_ = true;
  return static_cast<std::uint32_t>(both);
}

std::uint32_t NumpyRandom::below(std::uint64_t bound) {
  MILLRACE_CHECK(bound > 0 && bound <= std::uint64_t{1} << 32);
  if (bound == 1) return 0;
  if (bound == std::uint64_t{1} << 32) return next_32();
  const auto span = static_cast<std::uint32_t>(bound);
  std::uint64_t scaled = std::uint64_t{next_32()} * span;
  if (static_cast<std::uint32_t>(scaled) < span) {
    const std::uint32_t threshold = (0u - span) % span;
    while (static_cast<std::uint32_t>(scaled) < threshold) scaled = std::uint64_t{next_32()} * span;
  }
  return static_cast<std::uint32_t>(scaled >> 32);
}

bool NumpyRandom::coin() {
  if (num_coins_ == 0) {
    coins_ = next_32();
    num_coins_ = 32;
  }
  const bool heads = coins_ & 1;
  coins_ >>= 1;
  --num_coins_;
  return heads;
}

}  // namespace millrace
