// Bytes made up from (key, position). Any thread can make any part of any file alone: after an interruption,
// and once more to check the bytes that were read.
#pragma once

#include <cstdint>

#include "data/files/elements.h"

namespace millrace {

/// The randomness of the values. Both numbers keep the values' distribution.
struct Randomness {
  /// Bits of information in a byte, in (0, 8]. Below 8 only about 2^entropy of the byte values occur; numbers
  /// have fewer levels. Packers then reach about entropy/8 of the size.
  double entropy = 8;
  /// The chance, in [0, 1), that a value repeats the one before: the correlation of neighbours.
  double correlation = 0;
};

/// Returns a 64-bit value for position `index` of stream `key` (SplitMix64's output function over a counter).
constexpr std::uint64_t hashed(std::uint64_t key, std::uint64_t index) {
  std::uint64_t z = key + (index + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

/// Returns a number in [0, 1), uniform if `value` is.
constexpr double unit(std::uint64_t value) {
  return static_cast<double>(value >> 11) * 0x1.0p-53;
}

/// Numbers kCorrelated * k to kCorrelated * (k + 1) - 1 of a stream do not depend on the others.
inline constexpr std::int64_t kCorrelated = 4096;

/// An endless array of numbers: integers over their whole range, floats in [0, 1). A value type; thread-safe.
class Payload {
 public:
  Payload(std::uint64_t key, Element element, const Randomness& randomness);
  /// Writes the bytes [offset, offset + bytes) of the array to `out`.
  void fill(std::int64_t offset, char* out, std::int64_t bytes) const;

 private:
  void fill_bytes(std::int64_t offset, char* out, std::int64_t bytes) const;
  void fill_numbers(std::int64_t first, char* out, std::int64_t count) const;
  std::uint64_t key_;
  Element element_;
  Randomness randomness_;
  unsigned symbols_;  // number of different values of a byte
};

}  // namespace millrace
