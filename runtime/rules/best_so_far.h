// The best value of a metric so far: for the best checkpoint, and for early stopping. LibTorch-free.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "runtime/base/result.h"

namespace millrace {

/// The best value of a metric among the evaluations of a run. Checkpoints keep it.
struct BestSoFar {
  std::string metric;
  double value = std::numeric_limits<double>::quiet_NaN();  ///< NaN: none yet
  std::int64_t step = -1;                                   ///< steps done at that evaluation
  std::int64_t since = 0;                                   ///< evaluations after the best one
  bool operator==(const BestSoFar&) const = default;
};

/// `--early-stop METRIC:N`: a run ends after N consecutive evaluations that did not improve the best value.
struct EarlyStop {
  std::string metric;
  std::int64_t patience = 0;
};
Result<EarlyStop> early_stop_from(const std::string& text);
std::string to_string(const EarlyStop& stop);

/// The name of BLEU scores, which are not part of an evaluation.
inline constexpr std::string_view kBleuMetric = "bleu";

/// Returns whether higher values of a metric are better. With several heads, a metric is called HEAD.METRIC.
/// Returns an error that lists the known metrics if the metric is unknown.
Result<bool> higher_is_better(std::string_view metric);
/// Returns `metric` if it is known, else the same error; for flags.
Result<std::string> known_metric(const std::string& metric);

/// Records the value after `step` steps. Returns whether it is the best so far; NaN never is. The metric must
/// be known.
bool take(BestSoFar& best, double value, std::int64_t step);

}  // namespace millrace
