// Sizes and durations. Durations are double seconds in value types that are stored in files (profiles, plans,
// simulations), and std::chrono at run time.
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

/// The largest size. Sums and products of sizes saturate at it instead of wrapping, so that they stay above
/// every limit.
inline constexpr Bytes kMostBytes = std::numeric_limits<Bytes>::max();

/// Returns a + b, at most kMostBytes; neither may be negative.
constexpr Bytes saturating_sum(Bytes a, Bytes b) {
  return a > kMostBytes - b ? kMostBytes : a + b;
}
/// Returns a x count, at most kMostBytes; neither may be negative.
constexpr Bytes saturating_product(Bytes a, std::int64_t count) {
  return count != 0 && a > kMostBytes / count ? kMostBytes : a * count;
}
/// Returns the size nearest to `bytes`; 0 if `bytes` is negative or NaN.
constexpr Bytes saturating_bytes(double bytes) {
  if (!(bytes > 0)) return 0;
  return bytes >= static_cast<double>(kMostBytes) ? kMostBytes : static_cast<Bytes>(bytes);
}

}  // namespace millrace
