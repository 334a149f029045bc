// Detects a loss that is unusually high compared with earlier ones.
#pragma once

#include <deque>
#include <optional>

namespace millrace {

/// Compares each loss with the previous 64 that were not spikes. Not thread-safe.
class LossSpikes {
 public:
  /// Adds the next loss. Returns the median of the earlier ones if the loss is a spike. A spike exceeds the
  /// median by a quarter of the median's magnitude, and by 8 deviations. A deviation is 1.4826 times the
  /// median distance from the median, which is a normal distribution's standard deviation. Returns nothing
  /// until 16 losses (kFewest) were added, so none of the first 16 is a spike. NaN and Inf are ignored.
  std::optional<double> add(double loss);

 private:
  std::deque<double> before_;
};

}  // namespace millrace
