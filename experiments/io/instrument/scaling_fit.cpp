#include "experiments/io/instrument/scaling_fit.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <optional>

#include "experiments/io/instrument/statistics.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

using Coefficients = std::array<double, 3>;

/// Solves the symmetric system of the columns in `used` by elimination; nothing if it has no one solution.
std::optional<Coefficients> solve(const std::array<std::array<long double, 3>, 3>& matrix,
                                  const std::array<long double, 3>& right, unsigned used) {
  std::vector<std::vector<long double>> rows;
  std::vector<std::size_t> columns;
  for (std::size_t c = 0; c < 3; ++c) {
    if (used >> c & 1) columns.push_back(c);
  }
  for (std::size_t r : columns) {
    std::vector<long double> row;
    for (std::size_t c : columns) row.push_back(matrix[r][c]);
    row.push_back(right[r]);
    rows.push_back(row);
  }
  const std::size_t n = columns.size();
  for (std::size_t k = 0; k < n; ++k) {
    std::size_t pivot = k;
    for (std::size_t r = k + 1; r < n; ++r) {
      if (std::abs(rows[r][k]) > std::abs(rows[pivot][k])) pivot = r;
    }
    std::swap(rows[k], rows[pivot]);
    if (std::abs(rows[k][k]) < 1e-12L * matrix[columns[k]][columns[k]]) return std::nullopt;
    for (std::size_t r = 0; r < n; ++r) {
      if (r == k) continue;
      const long double factor = rows[r][k] / rows[k][k];
      for (std::size_t c = k; c <= n; ++c) rows[r][c] -= factor * rows[k][c];
    }
  }
  Coefficients result{};
  for (std::size_t k = 0; k < n; ++k) result[columns[k]] = static_cast<double>(rows[k][n] / rows[k][k]);
  return result;
}

bool varied(const std::vector<ScalingPoint>& points, double ScalingPoint::*quantity) {
  return std::ranges::any_of(points,
                             [&](const ScalingPoint& p) { return p.*quantity != points[0].*quantity; });
}

/// Least squares with no negative coefficient: the best of all sets of columns whose solution has none. A
/// column that is the same in all points is left out, and there are fewer columns than points.
Scaling nonnegative_plane(const std::vector<ScalingPoint>& points) {
  std::array<std::array<long double, 3>, 3> matrix{};
  std::array<long double, 3> right{};
  long double total = 0;
  double scale = 0;
  for (const ScalingPoint& point : points) scale = std::max(scale, point.value);
  const auto weight_of = [&](const ScalingPoint& point) {
    return 1 / std::max(point.value, 1e-9 * scale + 1e-300);  // relative errors
  };
  for (const ScalingPoint& point : points) {
    const double w = weight_of(point);
    const std::array<double, 3> x{point.ranks * w, point.batch * w, w};
    for (std::size_t r = 0; r < 3; ++r) {
      for (std::size_t c = 0; c < 3; ++c) matrix[r][c] += static_cast<long double>(x[r]) * x[c];
      right[r] += static_cast<long double>(x[r]) * point.value * w;
    }
    total += static_cast<long double>(point.value) * w * point.value * w;
  }
  Scaling best;
  long double least = total;  // of no column at all
  const unsigned known = (varied(points, &ScalingPoint::ranks) ? 1U : 0U) |
                         (varied(points, &ScalingPoint::batch) ? 2U : 0U) | 4U;
  const int most = std::max(1, static_cast<int>(points.size()) - 1);
  for (unsigned used = 1; used < 8; ++used) {
    if ((used & ~known) != 0 || std::popcount(used) > most) continue;
    const std::optional<Coefficients> found = solve(matrix, right, used);
    if (!found || std::any_of(found->begin(), found->end(), [](double v) { return v < 0; })) continue;
    long double residual = 0;
    for (const ScalingPoint& point : points) {
      const double e = ((*found)[0] * point.ranks + (*found)[1] * point.batch + (*found)[2] - point.value) *
                       weight_of(point);
      residual += static_cast<long double>(e) * e;
    }
    if (residual < least) {
      least = residual;
      best.a = (*found)[0], best.b = (*found)[1], best.c = (*found)[2];
    }
  }
  return best;
}

std::optional<Scaling> power_law(const std::vector<ScalingPoint>& points) {
  constexpr std::size_t kCoefficients = 3;
  if (points.size() <= kCoefficients || !varied(points, &ScalingPoint::ranks) ||
      !varied(points, &ScalingPoint::batch))
    return std::nullopt;
  std::vector<std::array<double, 2>> x;
  std::vector<double> y;
  for (const ScalingPoint& point : points) {
    if (point.value <= 0) return std::nullopt;
    x.push_back({std::log(point.ranks), std::log(point.batch)});
    y.push_back(std::log(point.value));
  }
  const Plane plane = fit_plane(x, y);
  return Scaling{Scaling::Form::Power, plane.a, plane.b, plane.c};
}

std::optional<Scaling> fit_form(const std::vector<ScalingPoint>& points, Scaling::Form form) {
  return form == Scaling::Form::Plane ? std::optional(nonnegative_plane(points)) : power_law(points);
}

double relative_error(const Scaling& scaling, const ScalingPoint& point) {
  const double predicted = scaling.at(point.ranks, point.batch);
  return point.value > 0 ? std::abs(predicted - point.value) / point.value : predicted > 0 ? INFINITY : 0;
}

/// The form on all points, with the errors of predicting each from the others.
std::optional<Scaling> judged_form(const std::vector<ScalingPoint>& points, Scaling::Form form) {
  std::optional<Scaling> all = fit_form(points, form);
  if (!all) return std::nullopt;
  all->ranks_varied = varied(points, &ScalingPoint::ranks);
  all->batch_varied = varied(points, &ScalingPoint::batch);
  if (points.size() == 1) {
    all->r2 = all->median_error = all->worst_error = std::nan("");
    return all;
  }
  std::vector<double> errors, values;
  for (std::size_t left = 0; left < points.size(); ++left) {
    std::vector<ScalingPoint> others = points;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(left));
    const std::optional<Scaling> without = fit_form(others, form);
    errors.push_back(without ? relative_error(*without, points[left]) : INFINITY);
    values.push_back(points[left].value);
  }
  std::sort(errors.begin(), errors.end());
  all->median_error = errors[errors.size() / 2];
  all->worst_error = errors.back();
  const double mean = mean_of(values);
  double residual = 0, total = 0;
  for (const ScalingPoint& point : points) {
    residual += std::pow(all->at(point.ranks, point.batch) - point.value, 2);
    total += std::pow(point.value - mean, 2);
  }
  all->r2 = total > 0 ? 1 - residual / total : 1;
  return all;
}

}  // namespace

double Scaling::at(double ranks, double batch) const {
  if (form == Form::Plane) return a * ranks + b * batch + c;
  return std::exp(c + a * std::log(ranks) + b * std::log(batch));
}

std::string Scaling::text() const {
  if (form == Form::Plane) return printed("%.6g * ranks + %.6g * batch + %.6g", a, b, c);
  return printed("%.6g * ranks^%.4g * batch^%.4g", std::exp(c), a, b);
}

Json Scaling::json() const {
  const auto or_null = [](double value) { return std::isfinite(value) ? Json(value) : Json(); };
  return Json::object({{"form", form == Form::Plane ? "plane" : "power"},
                       {"ranks", a},
                       {"batch", b},
                       {form == Form::Plane ? "constant" : "log_factor", c},
                       {"r2", or_null(r2)},
                       {"median_error", or_null(median_error)},
                       {"worst_error", or_null(worst_error)}});
}

Result<Scaling> fit_scaling(const std::vector<ScalingPoint>& points) {
  if (points.empty()) return Problem{"scaling", "there are no configurations to fit", ""};
  const std::optional<Scaling> plane = judged_form(points, Scaling::Form::Plane);
  const std::optional<Scaling> power = judged_form(points, Scaling::Form::Power);
  if (!power || power->median_error >= plane->median_error) return *plane;
  return *power;
}

}  // namespace millrace
