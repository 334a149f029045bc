// Named random streams: a stream depends on (seed, name, indices) only, never on the order of use.
#pragma once

#include <cstdint>
#include <string_view>

namespace millrace {

/// Returns a seed derived from a seed, a name and up to two counters. The result must never change, because
/// checkpoints and initial weights depend on it. It is FNV-1a over the name, then SplitMix64 over seed, hash
/// and counters.
std::uint64_t derive_seed(std::uint64_t seed, std::string_view name, std::uint64_t a = 0,
                          std::uint64_t b = 0);

/// SplitMix64-seeded xoshiro256**; the same numbers on every platform. Not thread-safe.
class RandomStream {
 public:
  explicit RandomStream(std::uint64_t seed);
  std::uint64_t next();  ///< uniform 64 bits
  double uniform();      ///< [0, 1)
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  std::uint64_t below(std::uint64_t bound);  ///< uniform in [0, bound), bound > 0, unbiased
  double normal();                           ///< standard normal (Box-Muller)

 private:
  std::uint64_t state_[4];
  bool has_spare_ = false;
  double spare_ = 0;
};

}  // namespace millrace
