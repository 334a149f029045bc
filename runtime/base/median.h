// The median that measurements use.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace millrace {

/// Returns the middle value, or the mean of the two middle values; 0 for no values. It is less sensitive than
/// a mean to other load on the machine.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace millrace
