// Detects that a rank computes more slowly than at first: a busy host, a hot processor.
#pragma once

#include <optional>
#include <vector>

namespace millrace {

/// Compares a rank's computation time in each step with its own first steps. Not thread-safe.
class SlowSteps {
 public:
  static constexpr int kSteps = 20;       ///< number of first steps, and of consecutive slow ones
  static constexpr double kFactor = 1.5;  ///< a step is slow from this multiple of the usual time on

  /// Adds the rank's computation time in the next step, in seconds; the first step, a warm-up, is ignored.
  /// After kSteps consecutive slow steps, returns once their median as a multiple of the usual time. The
  /// usual time is the median of the first kSteps.
  std::optional<double> add(double seconds);

 private:
  std::vector<double> first_, slow_;
  double usual_ = 0;
  bool warm_ = false, told_ = false;
};

}  // namespace millrace
