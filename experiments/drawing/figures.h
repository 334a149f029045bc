// Numbers for people.
#pragma once

#include <string>

namespace millrace {

/// Three digits that say something, thousands apart: "0.210", "4.24", "31.8", "305", "10,440". "–" for NaN
/// and Inf.
std::string figure(double value);

/// "8.08 ms", "143 µs", "2.50 s".
std::string duration_figure(double seconds);

}  // namespace millrace
