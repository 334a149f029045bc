// Fits families of distributions to durations by maximum likelihood, and compares them. Pure.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/choices.h"
#include "runtime/base/json.h"
#include "runtime/base/result.h"

namespace millrace {

enum class Family {
  Constant,
  Normal,
  LogNormal,
  Gamma,
  Weibull,
  Exponential,
  NormalMixture,
  LogNormalMixture,
  Empirical
};
constexpr auto names_of(Family) {
  return std::to_array<std::string_view>({"constant", "normal", "lognormal", "gamma", "weibull",
                                          "exponential", "normal_mixture", "lognormal_mixture", "empirical"});
}

/// Parameters by family: constant value; normal mean, stdev; lognormal mu, sigma of the logarithm; gamma and
/// weibull shape, scale; exponential scale (the mean); mixtures weight of the first, then mean, stdev (mu,
/// sigma) of the first and the second; empirical: quantiles at equal steps from the least to the greatest.
struct Distribution {
  Family family = Family::Constant;
  std::vector<double> parameters;

  std::vector<std::string> parameter_names() const;
  double log_density(double x) const;  ///< not for constant and empirical
  double cdf(double x) const;
  double mean() const;
  double std() const;
  Json json() const;  ///< {type, its parameters by name}, as workload files have it
};

struct FamilyFit {
  Distribution distribution;
  double log_likelihood = 0, aic = 0, bic = 0;  ///< not for constant and empirical
  double ks = 0;                                ///< Kolmogorov-Smirnov distance to the values
};

struct DistributionFits {
  std::vector<FamilyFit> fits;        ///< best BIC first, then constant or empirical
  std::vector<std::string> left_out;  ///< families that cannot have such values, and why
  const FamilyFit* find(Family family) const;
};

/// Values that are all alike give `constant`; families on positive numbers need positive values. Problem: no
/// values, or one that is not finite.
Result<DistributionFits> fit_distributions(const std::vector<double>& values);

/// Largest distance between a distribution's CDF and the values' own.
double ks_distance(const std::vector<double>& values, const Distribution& distribution);

/// psi and its derivative, for x > 0; regularised lower incomplete gamma function P(a, x).
double digamma(double x);
double trigamma(double x);
double gamma_p(double a, double x);

}  // namespace millrace
