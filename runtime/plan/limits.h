// The largest numbers that profiles, plans and cluster files may hold. What is larger is an error of the
// file, and nothing that is computed from what is smaller wraps.
#pragma once

namespace millrace {

inline constexpr int kMostFileRanks = 1 << 20;
inline constexpr int kMostFileMicrobatches = 1 << 20;
inline constexpr int kMostFileArrays = 1024;
inline constexpr int kMostFileSamples = 1 << 30;  ///< of a microbatch
inline constexpr double kMostLayerSeconds = 1e9;  ///< of one layer and one microbatch: 30 years
inline constexpr double kMostStepSeconds = 1e15;

}  // namespace millrace
