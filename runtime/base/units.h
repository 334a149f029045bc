// Sizes and durations. Durations are double seconds in value types that are stored in files
// (profiles, plans, simulations) and std::chrono at run time.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>

namespace millrace {

using Bytes = std::int64_t;
using Flops = std::int64_t;
using Seconds = std::chrono::duration<double>;

inline constexpr Bytes kKiB = Bytes{1} << 10;
inline constexpr Bytes kMiB = Bytes{1} << 20;
inline constexpr Bytes kGiB = Bytes{1} << 30;

/// Sums and products of sizes stop here instead of wrapping: more than any limit, never below one.
inline constexpr Bytes kMostBytes = std::numeric_limits<Bytes>::max();

/// a + b of sizes that are not negative.
constexpr Bytes saturating_sum(Bytes a, Bytes b) {
  return a > kMostBytes - b ? kMostBytes : a + b;
}
/// a x count; neither is negative.
constexpr Bytes saturating_product(Bytes a, std::int64_t count) {
  return count != 0 && a > kMostBytes / count ? kMostBytes : a * count;
}
/// The size that is nearest to `bytes` (0 for what is below, or not a number).
constexpr Bytes saturating_bytes(double bytes) {
  if (!(bytes > 0)) return 0;
  return bytes >= static_cast<double>(kMostBytes) ? kMostBytes : static_cast<Bytes>(bytes);
}

}  // namespace millrace
