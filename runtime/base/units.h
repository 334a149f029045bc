// Sizes and durations. Durations are double seconds in value types that are stored in files
// (profiles, plans, simulations) and std::chrono at run time.
#pragma once

#include <chrono>
#include <cstdint>

namespace millrace {

using Bytes = std::int64_t;
using Flops = std::int64_t;
using Seconds = std::chrono::duration<double>;

inline constexpr Bytes kKiB = Bytes{1} << 10;
inline constexpr Bytes kMiB = Bytes{1} << 20;
inline constexpr Bytes kGiB = Bytes{1} << 30;

}  // namespace millrace
