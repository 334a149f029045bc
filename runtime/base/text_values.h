// Parses numbers and sizes from a whole text, within a range. Hexadecimal, infinities and NaN are rejected.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace millrace {

Result<std::int64_t> integer_from(std::string_view text, std::int64_t minimum, std::int64_t maximum);
Result<double> number_from(std::string_view text, double minimum, double maximum);
/// "8GiB", "500MB", "16e9B". A number without a unit is an error, because bytes or GiB may be meant.
Result<Bytes> bytes_from(std::string_view text);
Result<std::vector<double>> numbers_from(std::string_view text);  ///< comma-separated
Result<std::vector<std::int64_t>> integers_from(std::string_view text, std::int64_t minimum,
                                                std::int64_t maximum);  ///< comma-separated
std::string shortest_text(double number);                               ///< the shortest that reads back

}  // namespace millrace
