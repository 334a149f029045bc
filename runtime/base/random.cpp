#include "runtime/base/random.h"

#include <bit>
#include <cmath>
#include <numbers>

#include "runtime/base/check.h"

namespace millrace {
namespace {

std::uint64_t split_mix(std::uint64_t& state) {
  std::uint64_t z = (state += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

}  // namespace

std::uint64_t derive_seed(std::uint64_t seed, std::string_view name, std::uint64_t a, std::uint64_t b) {
  std::uint64_t hash = 14695981039346656037ull;
  for (unsigned char c : name) hash = (hash ^ c) * 1099511628211ull;
  std::uint64_t state = seed;
  for (std::uint64_t part : {hash, a, b}) state = split_mix(state) ^ part;
  return split_mix(state);
}

RandomStream::RandomStream(std::uint64_t seed) {
  for (std::uint64_t& word : state_) word = split_mix(seed);
}

std::uint64_t RandomStream::next() {
  const std::uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
  const std::uint64_t t = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= t;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

double RandomStream::uniform() {
  return double(next() >> 11) * 0x1.0p-53;
}

std::uint64_t RandomStream::below(std::uint64_t bound) {
  MILLRACE_CHECK(bound > 0);
  const std::uint64_t limit =
      ~std::uint64_t{0} - ~std::uint64_t{0} % bound;  // reject the incomplete last block
  std::uint64_t value;
  do value = next();
  while (value >= limit);
  return value % bound;
}

double RandomStream::normal() {
  if (has_spare_) {
    has_spare_ = false;
    return spare_;
  }
  const double radius = std::sqrt(-2 * std::log(1 - uniform())), angle = 2 * std::numbers::pi * uniform();
  spare_ = radius * std::sin(angle);
  has_spare_ = true;
  return radius * std::cos(angle);
}

}  // namespace millrace
