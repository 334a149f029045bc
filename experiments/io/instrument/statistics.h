// Sample statistics as the kit computes them (Python's statistics and numpy), and least squares. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

namespace millrace {

double mean_of(const std::vector<double>& values);         ///< values not empty
double sample_std(const std::vector<double>& values);      ///< divides by n - 1; 0 for one value
double population_std(const std::vector<double>& values);  ///< divides by n
/// Linear interpolation at p * (n - 1) of the sorted values, p in [0, 1] (numpy's percentile).
double percentile(const std::vector<double>& sorted, double p);

struct Summary {
  double mean = 0, std = 0, q1 = 0, median = 0, q3 = 0;
  std::size_t count = 0;
};
/// Quartiles by the exclusive method: position p * (n + 1), as statistics.quantiles. One value: all are it.
Summary summary_of(const std::vector<double>& values);

/// Values from the 1st to the 99th percentile (linear interpolation), in their order.
std::vector<double> trimmed(const std::vector<double>& values);

/// y = a x0 + b x1 + c by ordinary least squares; R² = 1 - residual / total. A column that does not vary
/// has coefficient 0 (the solution of least norm).
struct Plane {
  double a = 0, b = 0, c = 0, r2 = 0;
};
Plane fit_plane(const std::vector<std::array<double, 2>>& x, const std::vector<double>& y);

}  // namespace millrace
