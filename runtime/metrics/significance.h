// How sure a BLEU is, and whether two systems' differ: bootstrap resampling (Koehn, EMNLP 2004) and
// approximate randomization (Riezler and Maxwell, 2005), with sacreBLEU 2's definitions and, given its seed,
// its numbers (those that it gets with NumPy 2). Pure and thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/metrics/bleu.h"

namespace millrace {

/// The mean of the resamples' scores, and half the distance between their 2.5 % and 97.5 % quantiles.
struct ConfidenceInterval {
  double mean = 0;
  double half_width = 0;
};

struct ResamplingOptions {
  int samples = 1000;  ///< at least 1
  std::uint64_t seed = 12345;
};

/// Draws, `samples` times, as many sentences as there are (at least 1), with replacement. Sums and scores are
/// in float32.
ConfidenceInterval bootstrap_interval(std::span<const BleuStatistics> sentences, const BleuOptions& options,
                                      const ResamplingOptions& resampling = {});

struct SystemResult {
  double score = 0;
  std::optional<ConfidenceInterval> interval;
  /// Two-sided, of the difference to the first system; of a system other than the first.
  std::optional<double> p_value;
};

/// Compares each system with the first one, the baseline, on the same resamples of the same sentences. The
/// p-value is the share of resamples whose difference, less the mean difference, is above the real one: (c +
/// 1) / (samples + 1).
std::vector<SystemResult> paired_bootstrap(std::span<const std::vector<BleuStatistics>> systems,
                                           const BleuOptions& options,
                                           const ResamplingOptions& resampling = {});

/// Compares systems by swapping each sentence's two hypotheses or not. The p-value is the share of trials
/// whose difference is above the real one. Exact in integers; no interval.
std::vector<SystemResult> paired_randomization(std::span<const std::vector<BleuStatistics>> systems,
                                               const BleuOptions& options,
                                               const ResamplingOptions& resampling = {.samples = 10'000});

}  // namespace millrace
