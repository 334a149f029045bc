// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// SC'11). Each number depends on key and counter alone, so a loop can draw many at once.
#pragma once

#include <array>
#include <cstdint>

namespace millrace {

/// Returns four uniform words. `counter` is the low 64 of the counter's 128 bits; the others are 0.
std::array<std::uint32_t, 4> philox(std::uint64_t counter, std::uint64_t key);

/// Sets each of `values` [count] to 0 with probability `p` in [0, 1], else to `kept`. Element i depends on
/// word (i mod 64) / 16 of counter 16 (i / 64) + i mod 16. The result is the same on every machine.
void draw_mask(float* values, std::int64_t count, double p, float kept, std::uint64_t key);

}  // namespace millrace
