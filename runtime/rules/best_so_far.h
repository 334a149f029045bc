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
  double value = std::numeric_limits<double>::quiet_NaN();  ///< NaN: there is none yet
  std::int64_t step = -1;                                   ///< steps done at that evaluation
  std::int64_t since = 0;                                   ///< evaluations since, none of which was better
  bool operator==(const BestSoFar&) const = default;
};

/// `--early-stop METRIC:N`: a run ends when N evaluations in a row were not better than the best.
struct EarlyStop {
  std::string metric;
  std::int64_t patience = 0;
};
Result<EarlyStop> early_stop_from(const std::string& text);
std::string to_string(const EarlyStop& stop);

/// The name that BLEU scores have. They are no part of an evaluation.
inline constexpr std::string_view kBleuMetric = "bleu";

/// Finds out whether higher or lower values of a metric are better. The metric of one of several heads is
/// called HEAD.METRIC. A Problem lists the metrics that are known.
Result<bool> higher_is_better(std::string_view metric);
/// The same, for flags: returns `metric` if it is known.
Result<std::string> known_metric(const std::string& metric);

/// Takes the value after `step` steps. Returns whether it is the best so far; NaN never is. The metric must
/// be known.
bool take(BestSoFar& best, double value, std::int64_t step);

}  // namespace millrace
