// The median that measurements use.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace millrace {

/// The middle value, of two the larger; 0 if there is none. Robust against the other work of the machine.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace millrace
