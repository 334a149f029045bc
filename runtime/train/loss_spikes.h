// Tells a loss that stands out from those before it.
#pragma once

#include <deque>
#include <optional>

namespace millrace {

/// Compares each loss with the 64 before it that did not stand out. Not thread-safe.
class LossSpikes {
 public:
  /// Takes the next loss. Returns the median of those before it if the loss is a spike. A spike is above the
  /// median by a quarter of the median's size, and by 8 deviations. A deviation is 1.4826 times the median
  /// distance from the median, which is a normal distribution's standard deviation. NaN and Inf are left out.
  std::optional<double> add(double loss);

 private:
  std::deque<double> before_;
};

}  // namespace millrace
