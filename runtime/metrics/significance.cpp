#include "runtime/metrics/significance.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/check.h"
#include "runtime/metrics/numpy_random.h"

namespace millrace {
namespace {

Bleu score_of_all(std::span<const BleuStatistics> sentences, const BleuOptions& options) {
  BleuStatistics sum;
  for (const BleuStatistics& sentence : sentences) sum += sentence;
  return score_bleu(sum, options);
}

/// The statistics of all sentences as a table of `Number` with 2 + 2 max_order columns.
template <class Number>
std::vector<Number> table_of(std::span<const BleuStatistics> sentences, int max_order) {
  std::vector<Number> table;
  table.reserve(sentences.size() * (2 + 2 * static_cast<std::size_t>(max_order)));
  for (const BleuStatistics& sentence : sentences)
    for (const std::int64_t count : sentence.integers(max_order)) table.push_back(static_cast<Number>(count));
  return table;
}

std::vector<double> resampled_scores(std::span<const BleuStatistics> sentences, const BleuOptions& options,
                                     const ResamplingOptions& resampling) {
  MILLRACE_CHECK(!sentences.empty() && resampling.samples >= 1);
  const std::vector<float> table = table_of<float>(sentences, options.max_order);
  const std::size_t columns = table.size() / sentences.size();
  NumpyRandom random(resampling.seed);
  std::vector<double> scores;
  std::vector<float> sums(columns);
  for (int sample = 0; sample < resampling.samples; ++sample) {
    std::ranges::fill(sums, 0.f);
    for (std::size_t i = 0; i < sentences.size(); ++i) {
      const float* const row = table.data() + random.below(sentences.size()) * columns;
      for (std::size_t c = 0; c < columns; ++c) sums[c] += row[c];
    }
    scores.push_back(score_of_float_sums(sums, options));
  }
  return scores;
}

/// Adds in the order of NumPy's sum, because p-values compare with a mean.
double pairwise_sum(std::span<const double> values) {
  if (values.size() < 8) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum;
  }
  if (values.size() > 128) {
    std::size_t half = values.size() / 2;
    half -= half % 8;
    return pairwise_sum(values.first(half)) + pairwise_sum(values.subspan(half));
  }
  double sums[8];
  std::copy_n(values.begin(), 8, sums);
  std::size_t i = 8;
  for (; i + 8 <= values.size(); i += 8)
    for (std::size_t k = 0; k < 8; ++k) sums[k] += values[i + k];
  double sum = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  for (; i < values.size(); ++i) sum += values[i];
  return sum;
}

double mean_of(std::span<const double> values) {
  return pairwise_sum(values) / static_cast<double>(values.size());
}

ConfidenceInterval interval_of(std::vector<double> scores) {
  std::ranges::sort(scores);
  const std::size_t cut = scores.size() / 40;  // 2.5 % on each side
  return {mean_of(scores), 0.5 * (scores[scores.size() - cut - 1] - scores[cut])};
}

double p_value_of(std::span<const double> differences, double real) {
  const auto above = std::ranges::count_if(differences, [=](double d) { return d > real; });
  return static_cast<double>(above + 1) / static_cast<double>(differences.size() + 1);
}

void check_same_size(std::span<const std::vector<BleuStatistics>> systems) {
  MILLRACE_CHECK(!systems.empty());
  for (const std::vector<BleuStatistics>& system : systems)
    MILLRACE_CHECK(system.size() == systems[0].size());
}

}  // namespace

ConfidenceInterval bootstrap_interval(std::span<const BleuStatistics> sentences, const BleuOptions& options,
                                      const ResamplingOptions& resampling) {
  return interval_of(resampled_scores(sentences, options, resampling));
}

std::vector<SystemResult> paired_bootstrap(std::span<const std::vector<BleuStatistics>> systems,
                                           const BleuOptions& options, const ResamplingOptions& resampling) {
  check_same_size(systems);
  std::vector<SystemResult> results;
  std::vector<double> baseline;
  for (const std::vector<BleuStatistics>& system : systems) {
    std::vector<double> scores = resampled_scores(system, options, resampling);
    SystemResult result{.score = score_of_all(system, options).score, .interval = interval_of(scores)};
    if (results.empty()) {
      baseline = std::move(scores);
    } else {
      std::vector<double> differences(scores.size());
      for (std::size_t i = 0; i < scores.size(); ++i) differences[i] = std::abs(scores[i] - baseline[i]);
      const double mean = mean_of(differences);
      for (double& difference : differences) difference -= mean;
      result.p_value = p_value_of(differences, std::abs(results[0].score - result.score));
    }
    results.push_back(result);
  }
  return results;
}

std::vector<SystemResult> paired_randomization(std::span<const std::vector<BleuStatistics>> systems,
                                               const BleuOptions& options,
                                               const ResamplingOptions& resampling) {
  check_same_size(systems);
  MILLRACE_CHECK(!systems[0].empty() && resampling.samples >= 1);
  const std::vector<std::int64_t> baseline = table_of<std::int64_t>(systems[0], options.max_order);
  const std::size_t columns = baseline.size() / systems[0].size();
  std::vector<SystemResult> results{{.score = score_of_all(systems[0], options).score}};
  for (const std::vector<BleuStatistics>& system : systems.subspan(1)) {
    const std::vector<std::int64_t> table = table_of<std::int64_t>(system, options.max_order);
    std::vector<std::int64_t> change(table.size()), own(columns), both(columns);
    for (std::size_t i = 0; i < table.size(); ++i) {
      change[i] = baseline[i] - table[i];
      own[i % columns] += table[i];
      both[i % columns] += table[i] + baseline[i];
    }
    NumpyRandom random(resampling.seed);
    std::vector<double> differences;
    for (int trial = 0; trial < resampling.samples; ++trial) {
      // The first pseudo-system has the baseline's sentences where the coin is true; the second one has the
      // others.
      std::vector<std::int64_t> first = own, second(columns);
      for (std::size_t s = 0; s < system.size(); ++s) {
        const std::int64_t mask = -static_cast<std::int64_t>(random.coin());
        const std::int64_t* const row = change.data() + s * columns;
        for (std::size_t c = 0; c < columns; ++c) first[c] += row[c] & mask;
      }
      for (std::size_t c = 0; c < columns; ++c) second[c] = both[c] - first[c];
      differences.push_back(std::abs(score_bleu(BleuStatistics::from_integers(first), options).score -
                                     score_bleu(BleuStatistics::from_integers(second), options).score));
    }
    SystemResult result{.score = score_of_all(system, options).score};
    result.p_value = p_value_of(differences, std::abs(results[0].score - result.score));
    results.push_back(result);
  }
  return results;
}

}  // namespace millrace
