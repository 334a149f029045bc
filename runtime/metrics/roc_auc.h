// The area under the ROC curve, from counts that can be summed over ranks. The scores of an evaluation are
// counted in bins, by label. The result therefore depends neither on the order of samples nor on their
// distribution over ranks.
#pragma once

#include <cstddef>
#include <span>

namespace millrace {

/// The number of bins. Bins are 1/256 wide in the logit of the score, from -16 to 16; the first and the last
/// include all values beyond. Scores in one bin count as equal. That changes the area by less than 1e-5 where
/// the scores' density is smooth.
inline constexpr std::size_t kRocBins = 8192;
inline constexpr double kRocBinsPerUnit = 256;
inline constexpr double kLowestRocLogit = -16;

/// Returns the bin of a score.
std::size_t roc_bin(double logit);

/// Returns the probability that a random positive has a higher score than a random negative; a tie counts
/// half. `negatives` and `positives` are counts by bin, in score order; expected counts may be fractions.
/// Returns NaN if there are no positives or no negatives. Pure.
double roc_auc(std::span<const double> negatives, std::span<const double> positives);

}  // namespace millrace
