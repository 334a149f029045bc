// Confidence of a BLEU score and of a difference between two systems: bootstrap resampling (Koehn, EMNLP
// 2004) and approximate randomization (Riezler and Maxwell, 2005). It uses sacreBLEU 2's definitions and,
// with the same seed, gives its numbers (with NumPy 2). Pure and thread-safe.
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

/// Draws as many sentences as there are (at least 1), with replacement, `samples` times. Sums and scores are
/// float32.
ConfidenceInterval bootstrap_interval(std::span<const BleuStatistics> sentences, const BleuOptions& options,
                                      const ResamplingOptions& resampling = {});

struct SystemResult {
  double score = 0;
  std::optional<ConfidenceInterval> interval;
  /// Two-sided p-value of the difference from the first system; absent for the first system.
  std::optional<double> p_value;
};

/// Compares each system with the first one, the baseline, on the same resamples of the same sentences. The
/// p-value is (c + 1) / (samples + 1). c counts the resamples whose difference, minus the mean difference,
/// exceeds the actual one.
std::vector<SystemResult> paired_bootstrap(std::span<const std::vector<BleuStatistics>> systems,
                                           const BleuOptions& options,
                                           const ResamplingOptions& resampling = {});

/// Compares systems by randomly swapping each sentence's two hypotheses. The p-value is the share of trials
/// whose difference exceeds the actual one. Exact in integers; no interval.
std::vector<SystemResult> paired_randomization(std::span<const std::vector<BleuStatistics>> systems,
                                               const BleuOptions& options,
                                               const ResamplingOptions& resampling = {.samples = 10'000});

}  // namespace millrace
