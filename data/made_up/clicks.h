// Clicks that look like Criteo's, from a model whose best possible AUC is known. A network can learn them:
// the chance of a click follows from the dense features and from a hidden number of each category.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace millrace {

inline constexpr double kClickRate = 0.03;
inline constexpr double kClickZipf = 1.1;  ///< exponent of the categories' frequencies

/// The hidden model and its rows. Rows are functions of (seed, stream, number) alone. Immutable and
/// thread-safe.
class ClickModel {
 public:
  /// `rows` are the different values of each categorical feature, each at least 1.
  ClickModel(std::uint64_t seed, int dense_features, std::vector<std::int64_t> rows);

  std::size_t row_numbers() const { return 1 + weights_.size() + rows_.size(); }
  /// Writes a row: the label, the dense features (whole numbers, 30 % zeros, else floor(exp(N(0, 1.5^2)))),
  /// and the categories. `stream` tells apart the rows of several files. Returns the chance of a click.
  double draw(std::uint64_t stream, std::uint64_t number, std::span<std::int32_t> row) const;
  /// Returns the expected AUC of these chances themselves over rows 0 to count - 1 of a stream. No scores
  /// have a higher one.
  double auc_ceiling(std::uint64_t stream, std::int64_t count) const;

 private:
  std::uint64_t seed_;
  std::vector<double> weights_;  ///< of the dense features
  std::vector<std::int64_t> rows_;
  double effect_ = 0;  ///< deviation of a category's hidden number
  double bias_ = 0;
};

}  // namespace millrace
