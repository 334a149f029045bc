// Notices that a rank computes slower than it did at first: a busy host, a hot processor.
#pragma once

#include <optional>
#include <vector>

namespace millrace {

/// Compares what a rank computes in each step with its own first steps. Not thread-safe.
class SlowSteps {
 public:
  static constexpr int kSteps = 20;       ///< in a row, of the first ones and of slow ones
  static constexpr double kFactor = 1.5;  ///< a step is slow from this times the usual on

  /// Takes the seconds that the rank computed in the next step; the first step, which warms up, does not
  /// count. Returns how many times the usual the last steps took (their median), once, after kSteps slow ones
  /// in a row. The usual is the median of the first kSteps.
  std::optional<double> add(double seconds);

 private:
  std::vector<double> first_, slow_;
  double usual_ = 0;
  bool warm_ = false, told_ = false;
};

}  // namespace millrace
