#include "data/made_up/clicks.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "data/made_up/payload.h"
#include "runtime/base/random.h"
#include "runtime/metrics/roc_auc.h"

namespace millrace {
namespace {

constexpr double kZeroChance = 0.3, kDenseDeviation = 1.5;
/// Variance of the logit that all dense features give, and that all categories give.
constexpr double kDenseVariance = 1.2, kCategoryVariance = 1.2;
constexpr double kLogVariance = 0.9;  ///< about that of ln(1 + x) of a dense feature
constexpr int kRowsForBias = 4096;

double sigmoid(double logit) {
  return 1 / (1 + std::exp(-logit));
}

/// Returns a place in [0, count), frequent ones first: the integer part of a continuous Zipf distribution.
std::int64_t zipf_place(double u, std::int64_t count) {
  const double exponent = 1 - kClickZipf, most = std::pow(double(count + 1), exponent);
  const double value = std::pow(1 - u * (1 - most), 1 / exponent);
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(value) - 1, 0, count - 1);
}

/// Returns the category at a place. It is a permutation of [0, count), so that frequent ones are spread.
std::int64_t category_at(std::int64_t place, std::int64_t count, std::uint64_t key) {
  std::int64_t factor = 1 + static_cast<std::int64_t>(unit(hashed(key, 0)) * double(count - 1));
  while (std::gcd(factor, count) != 1) ++factor;
  const auto shift = static_cast<std::int64_t>(unit(hashed(key, 1)) * double(count));
  return static_cast<std::int64_t>((static_cast<__int128>(place) * factor + shift) % count);
}

}  // namespace

ClickModel::ClickModel(std::uint64_t seed, int dense_features, std::vector<std::int64_t> rows)
    : seed_(seed), rows_(std::move(rows)) {
  RandomStream random(derive_seed(seed, "clicks.dense"));
  double squares = 0;
  for (int i = 0; i < dense_features; ++i) {
    weights_.push_back(random.uniform(-1, 1));
    squares += weights_.back() * weights_.back() * kLogVariance;
  }
  for (double& weight : weights_) weight *= std::sqrt(kDenseVariance / squares);
  if (!rows_.empty()) effect_ = std::sqrt(kCategoryVariance / double(rows_.size()));
  // The bias for which the mean chance is the click rate.
  std::vector<std::int32_t> row(row_numbers());
  std::vector<double> logits;
  for (int i = 0; i < kRowsForBias; ++i) {
    const double p = draw(derive_seed(seed, "clicks.bias"), static_cast<std::uint64_t>(i), row);
    logits.push_back(std::log(p / (1 - p)));
  }
  double low = -20, high = 20;
  for (int round = 0; round < 60; ++round) {
    bias_ = (low + high) / 2;
    double sum = 0;
    for (const double logit : logits) sum += sigmoid(logit + bias_);
    (sum > kClickRate * kRowsForBias ? high : low) = bias_;
  }
}

double ClickModel::draw(std::uint64_t stream, std::uint64_t number, std::span<std::int32_t> row) const {
  RandomStream random(derive_seed(seed_, "clicks.row", stream, number));
  double logit = bias_;
  std::size_t at = 1;
  for (const double weight : weights_) {
    const double zero = random.uniform(), value = std::floor(std::exp(kDenseDeviation * random.normal()));
    row[at] = zero < kZeroChance ? 0 : static_cast<std::int32_t>(value);
    logit += weight * std::log1p(double(row[at++]));
  }
  for (std::size_t table = 0; table < rows_.size(); ++table) {
    const std::uint64_t key = derive_seed(seed_, "clicks.category", table);
    const std::int64_t category = category_at(zipf_place(random.uniform(), rows_[table]), rows_[table], key);
    // Uniform in +-sqrt(3), so that its variance is 1.
    const double hidden =
        std::numbers::sqrt3 * (2 * unit(hashed(key, static_cast<std::uint64_t>(category) + 2)) - 1);
    row[at++] = static_cast<std::int32_t>(category);
    logit += effect_ * hidden;
  }
  const double chance = sigmoid(logit);
  row[0] = random.uniform() < chance ? 1 : 0;
  return chance;
}

double ClickModel::auc_ceiling(std::uint64_t stream, std::int64_t count) const {
  std::vector<double> negatives(kRocBins, 0.0), positives(kRocBins, 0.0);
  std::vector<std::int32_t> row(row_numbers());
  for (std::int64_t i = 0; i < count; ++i) {
    const double chance = draw(stream, static_cast<std::uint64_t>(i), row);
    const std::size_t bin = roc_bin(std::log(chance / (1 - chance)));
    positives[bin] += chance;
    negatives[bin] += 1 - chance;
  }
  return roc_auc(negatives, positives);
}

}  // namespace millrace
