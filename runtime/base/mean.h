// The arithmetic mean.
#pragma once

#include <numeric>
#include <vector>

namespace millrace {

/// Returns the sum of the values divided by their number; 0 for no values.
inline double mean(const std::vector<double>& values) {
  return values.empty() ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / double(values.size());
}

}  // namespace millrace
