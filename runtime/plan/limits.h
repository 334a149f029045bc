// The largest numbers that profiles, plans and cluster files may contain. A larger number is an error in the
// file. Within these limits no sum or product wraps.
#pragma once

namespace millrace {

inline constexpr int kMostFileRanks = 1 << 20;
/// The largest job that can be launched and simulated.
inline constexpr int kMostJobRanks = 1 << 14;
inline constexpr int kMostFileMicrobatches = 1 << 20;
inline constexpr int kMostFileArrays = 1024;
inline constexpr int kMostFileSamples = 1 << 30;  ///< in a microbatch
inline constexpr double kMostLayerSeconds = 1e9;  ///< for one layer and one microbatch: 30 years
inline constexpr double kMostStepSeconds = 1e15;

}  // namespace millrace
