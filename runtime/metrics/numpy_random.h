// NumPy's default generator, bit for bit: SeedSequence, PCG64 (XSL-RR 128/64) and the bounded draws of
// Generator.choice and Generator.integers. Use it only for results that must equal a Python program's,
// otherwise RandomStream. O'Neill, PCG (2014); Lemire, Fast random integer generation in an interval (2019).
#pragma once

#include <cstdint>

namespace millrace {

/// numpy.random.default_rng(seed). Not thread-safe.
class NumpyRandom {
 public:
  explicit NumpyRandom(std::uint64_t seed);

  std::uint64_t next_64();
  std::uint32_t next_32();  ///< the halves of a next_64, the lower one first

  /// Returns the next value of choice(bound, size=..., replace=True). 0 < bound <= 2^32; draws nothing for 1.
  std::uint32_t below(std::uint64_t bound);
  /// Returns the next value of integers(2, size=..., dtype=bool). Each generator supports one such array.
  bool coin();

 private:
  using Wide = unsigned __int128;
  Wide state_ = 0, increment_ = 0;
  std::uint32_t half_ = 0;
  bool has_half_ = false;
  std::uint32_t coins_ = 0;
  int num_coins_ = 0;
};

}  // namespace millrace
