#include "runtime/metrics/roc_auc.h"

#include <algorithm>
#include <limits>

#include "runtime/base/check.h"

namespace millrace {

std::size_t roc_bin(double logit) {
  return static_cast<std::size_t>(
      std::clamp((logit - kLowestRocLogit) * kRocBinsPerUnit, 0.0, double(kRocBins - 1)));
}

double roc_auc(std::span<const double> negatives, std::span<const double> positives) {
  MILLRACE_CHECK(negatives.size() == positives.size());
  double below = 0, ordered = 0, all_positives = 0;
  for (std::size_t bin = 0; bin < positives.size(); ++bin) {
    ordered += positives[bin] * (below + negatives[bin] / 2);
    below += negatives[bin];
    all_positives += positives[bin];
  }
  if (below == 0 || all_positives == 0) return std::numeric_limits<double>::quiet_NaN();
  return ordered / below / all_positives;
}

}  // namespace millrace
