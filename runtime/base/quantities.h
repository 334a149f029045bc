// Human-readable sizes, durations and rank lists, shared by tables, reports and drawings.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/base/units.h"

namespace millrace {

/// "1.50 MiB", "12 B".
std::string bytes_text(Bytes bytes);
/// Reads a size such as "16e9", "8GiB", "500 MB" or "123". The number is not negative, and its unit may be
/// kB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024). Returns nothing for other text and
/// for 2^63 bytes or more.
std::optional<Bytes> parse_bytes(std::string_view text);
/// Reads a duration such as "90", "45s", "90m", "1.5h" or "2d", in seconds; without a unit they are seconds.
/// Returns nothing for other text, and for numbers that are negative or not finite.
std::optional<double> parse_duration(std::string_view text);
/// "ranks 0-2", "ranks 0, 4, 5", "rank 3".
std::string ranks_text(const std::vector<RankId>& ranks);
/// Four significant digits in the unit that fits: "1.234 s", "12.34 ms", "5.6 us".
std::string duration_text(double seconds);
/// The interval of a prediction of `seconds` from a profile whose blocks differ by `spread`
/// (Measured::spread): "the profile's 3 blocks differ by +-2.0 %: 98 ms to 102 ms, no prediction is closer".
/// `blocks` 0: unknown.
std::string interval_text(double seconds, double spread, int blocks = 0);

}  // namespace millrace
