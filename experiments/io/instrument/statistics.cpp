#include "experiments/io/instrument/statistics.h"

#include <algorithm>
#include <cmath>

namespace millrace {
namespace {

// Long double: Python's statistics module sums exactly.
long double sum_of_squares(const std::vector<double>& values) {
  const long double mean = mean_of(values);
  long double correction = 0, sum = 0;
  for (double value : values) {
    sum += (value - mean) * (value - mean);
    correction += value - mean;
  }
  return sum - correction * correction / static_cast<long double>(values.size());
}

double exclusive_quantile(const std::vector<double>& sorted, int quarter) {
  const std::size_t n = sorted.size();
  const std::size_t position = static_cast<std::size_t>(quarter) * (n + 1);
  const std::size_t j = std::clamp<std::size_t>(position / 4, 1, n - 1);
  const double delta = static_cast<double>(position) - static_cast<double>(j * 4);
  return (sorted[j - 1] * (4 - delta) + sorted[j] * delta) / 4;
}

}  // namespace

double mean_of(const std::vector<double>& values) {
  long double sum = 0;
  for (double value : values) sum += value;
  return static_cast<double>(sum / static_cast<long double>(values.size()));
}

double sample_std(const std::vector<double>& values) {
  if (values.size() < 2) return 0;
  return static_cast<double>(std::sqrt(sum_of_squares(values) / static_cast<long double>(values.size() - 1)));
}

double population_std(const std::vector<double>& values) {
  return static_cast<double>(std::sqrt(sum_of_squares(values) / static_cast<long double>(values.size())));
}

double percentile(const std::vector<double>& sorted, double p) {
  const double position = p * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double t = position - static_cast<double>(below), step = sorted[above] - sorted[below];
  return t < 0.5 ? sorted[below] + step * t : sorted[above] - step * (1 - t);
}

Summary summary_of(const std::vector<double>& values) {
  Summary summary;
  summary.count = values.size();
  if (values.empty()) return summary;
  std::vector<double> sorted = values;
  std::sort(sorted.begin(), sorted.end());
  summary.mean = mean_of(values);
  summary.std = sample_std(values);
  const std::size_t n = sorted.size();
  summary.median = n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
  summary.q1 = n < 2 ? sorted[0] : exclusive_quantile(sorted, 1);
  summary.q3 = n < 2 ? sorted[0] : exclusive_quantile(sorted, 3);
  return summary;
}

std::vector<double> trimmed(const std::vector<double>& values) {
  if (values.empty()) return {};
  std::vector<double> sorted = values;
  std::sort(sorted.begin(), sorted.end());
  const double low = percentile(sorted, 0.01), high = percentile(sorted, 0.99);
  std::vector<double> kept;
  std::copy_if(values.begin(), values.end(), std::back_inserter(kept),
               [&](double value) { return value >= low && value <= high; });
  return kept;
}

Plane fit_plane(const std::vector<std::array<double, 2>>& x, const std::vector<double>& y) {
  const auto n = static_cast<long double>(y.size());
  long double m0 = 0, m1 = 0, my = 0;
  for (std::size_t i = 0; i < y.size(); ++i) m0 += x[i][0], m1 += x[i][1], my += y[i];
  m0 /= n, m1 /= n, my /= n;
  long double s00 = 0, s01 = 0, s11 = 0, s0y = 0, s1y = 0, syy = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const long double d0 = x[i][0] - m0, d1 = x[i][1] - m1, dy = y[i] - my;
    s00 += d0 * d0, s01 += d0 * d1, s11 += d1 * d1;
    s0y += d0 * dy, s1y += d1 * dy, syy += dy * dy;
  }
  long double a = 0, b = 0;
  const long double determinant = s00 * s11 - s01 * s01;
  if (determinant > 1e-12L * s00 * s11 && s00 > 0 && s11 > 0) {
    a = (s0y * s11 - s1y * s01) / determinant;
    b = (s1y * s00 - s0y * s01) / determinant;
  } else if (s00 + s11 > 0) {  // on a line (or one column constant): the least coefficients that fit
    const long double direction0 = s00 >= s11 ? s00 : s01, direction1 = s00 >= s11 ? s01 : s11;
    const long double spread =
        (direction0 * direction0 * s00 + 2 * direction0 * direction1 * s01 + direction1 * direction1 * s11);
    const long double slope = spread > 0 ? (direction0 * s0y + direction1 * s1y) / spread : 0;
    a = slope * direction0;
    b = slope * direction1;
  }
  const long double c = my - a * m0 - b * m1;
  long double residual = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const long double r = y[i] - (a * x[i][0] + b * x[i][1] + c);
    residual += r * r;
  }
  Plane plane{static_cast<double>(a), static_cast<double>(b), static_cast<double>(c), 1};
  if (syy > 0) plane.r2 = static_cast<double>(1 - residual / syy);
  return plane;
}

}  // namespace millrace
