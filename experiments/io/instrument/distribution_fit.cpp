#include "experiments/io/instrument/distribution_fit.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "experiments/io/instrument/statistics.h"

namespace millrace {
namespace {

constexpr double kLogRootTwoPi = 0.91893853320467274178;
constexpr int kMostSteps = 200;
constexpr std::size_t kQuantiles = 101;

double normal_log_density(double x, double mean, double std) {
  const double z = (x - mean) / std;
  return -0.5 * z * z - std::log(std) - kLogRootTwoPi;
}

double normal_cdf(double x, double mean, double std) {
  return 0.5 * std::erfc(-(x - mean) / (std * std::numbers::sqrt2));
}

double log_sum(double a, double b) {
  const double most = std::max(a, b);
  return std::isinf(most) ? most : most + std::log(std::exp(a - most) + std::exp(b - most));
}

std::vector<double> logarithms(const std::vector<double>& values) {
  std::vector<double> logs;
  for (double value : values) logs.push_back(std::log(value));
  return logs;
}

Distribution fit_gamma(const std::vector<double>& values, const std::vector<double>& logs) {
  const double mean = mean_of(values), s = std::log(mean) - mean_of(logs);
  double shape = (3 - s + std::sqrt((s - 3) * (s - 3) + 24 * s)) / (12 * s);
  for (int i = 0; i < kMostSteps; ++i) {  // Newton; Minka 2002, "Estimating a Gamma distribution"
    const double step = (std::log(shape) - digamma(shape) - s) / (1 / shape - trigamma(shape));
    const double next = shape - step > 0 ? shape - step : shape / 2;
    const bool done = std::abs(next - shape) <= 1e-13 * shape;
    shape = next;
    if (done) break;
  }
  return {Family::Gamma, {shape, mean / shape}};
}

Distribution fit_weibull(const std::vector<double>& values, const std::vector<double>& logs) {
  const double mean_log = mean_of(logs);
  const double most = *std::max_element(values.begin(), values.end());
  // d/dk log-likelihood, in x / max so that powers stay finite.
  const auto slope = [&](double k, double& derivative) {
    long double s0 = 0, s1 = 0, s2 = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const long double power = std::pow(values[i] / most, k);
      s0 += power, s1 += power * logs[i], s2 += power * logs[i] * logs[i];
    }
    const long double ratio = s1 / s0;
    derivative = static_cast<double>(-1 / (k * k) - (s2 / s0 - ratio * ratio));
    return static_cast<double>(1 / k + mean_log - ratio);
  };
  double shape = std::max(0.05, 1.2 / std::max(sample_std(logs), 1e-6));
  for (int i = 0; i < kMostSteps; ++i) {
    double derivative = 0;
    const double step = slope(shape, derivative) / derivative;
    const double next = shape - step > 0 ? shape - step : shape / 2;
    const bool done = std::abs(next - shape) <= 1e-13 * shape;
    shape = next;
    if (done) break;
  }
  long double sum = 0;
  for (double value : values) sum += std::pow(value / most, shape);
  const double scale =
      most * std::pow(static_cast<double>(sum) / static_cast<double>(values.size()), 1 / shape);
  return {Family::Weibull, {shape, scale}};
}

/// Two normals under way: weight of the first, means, spreads.
struct Mixture {
  double w, m[2], s[2];
};

/// Steps of EM; returns the log-likelihood before the last of them. `share` is working space.
double run_em(Mixture& mix, const std::vector<double>& values, double floor, int most_steps,
              std::vector<double>& share) {
  const std::size_t n = values.size();
  double likelihood = -INFINITY;
  for (int step = 0; step < most_steps; ++step) {
    double constant[2], scale[2];
    for (int k = 0; k < 2; ++k) {
      constant[k] = std::log(k == 0 ? mix.w : 1 - mix.w) - std::log(mix.s[k]) - kLogRootTwoPi;
      scale[k] = -0.5 / (mix.s[k] * mix.s[k]);
    }
    double total = 0, weight = 0, sum[2] = {0, 0};
    for (std::size_t i = 0; i < n; ++i) {
      const double a = constant[0] + scale[0] * (values[i] - mix.m[0]) * (values[i] - mix.m[0]);
      const double b = constant[1] + scale[1] * (values[i] - mix.m[1]) * (values[i] - mix.m[1]);
      const double ratio = std::exp(-std::abs(a - b));
      total += std::max(a, b) + std::log1p(ratio);
      share[i] = a > b ? 1 / (1 + ratio) : ratio / (1 + ratio);
      weight += share[i];
      sum[0] += share[i] * values[i];
      sum[1] += (1 - share[i]) * values[i];
    }
    const double gained = total - likelihood, other = static_cast<double>(n) - weight;
    likelihood = total;
    if (step > 0 && gained <= 1e-9) break;
    if (weight < 1 || other < 1) break;
    mix.m[0] = sum[0] / weight, mix.m[1] = sum[1] / other;
    double square[2] = {0, 0};
    for (std::size_t i = 0; i < n; ++i) {
      square[0] += share[i] * (values[i] - mix.m[0]) * (values[i] - mix.m[0]);
      square[1] += (1 - share[i]) * (values[i] - mix.m[1]) * (values[i] - mix.m[1]);
    }
    mix.s[0] = std::max(std::sqrt(square[0] / weight), floor);
    mix.s[1] = std::max(std::sqrt(square[1] / other), floor);
    mix.w = weight / static_cast<double>(n);
  }
  return likelihood;
}

/// EM for two normals: a little from a split of the sorted values at several places, then on from the
/// likeliest.
std::optional<std::vector<double>> fit_mixture(const std::vector<double>& values) {
  constexpr int kFirstSteps = 40, kMoreSteps = 1000;
  std::vector<double> sorted = values;
  std::sort(sorted.begin(), sorted.end());
  const std::size_t n = sorted.size();
  if (n < 8) return std::nullopt;
  // A component must not collapse onto one value, where the likelihood has no bound.
  const double floor = std::max(1e-3 * population_std(values), 1e-300);
  std::vector<double> share(n);
  Mixture best{};
  double best_likelihood = -INFINITY;
  for (double split : {0.1, 0.25, 0.5, 0.75, 0.9}) {
    const auto cut =
        std::clamp<std::size_t>(static_cast<std::size_t>(split * static_cast<double>(n)), 2, n - 2);
    const std::vector<double> low(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(cut));
    const std::vector<double> high(sorted.begin() + static_cast<std::ptrdiff_t>(cut), sorted.end());
    Mixture mix{static_cast<double>(cut) / static_cast<double>(n),
                {mean_of(low), mean_of(high)},
                {std::max(population_std(low), floor), std::max(population_std(high), floor)}};
    const double likelihood = run_em(mix, sorted, floor, kFirstSteps, share);
    if (likelihood > best_likelihood) best_likelihood = likelihood, best = mix;
  }
  run_em(best, sorted, floor, kMoreSteps, share);
  return std::vector<double>{best.w, best.m[0], best.s[0], best.m[1], best.s[1]};
}

Distribution empirical(const std::vector<double>& values) {
  std::vector<double> sorted = values;
  std::sort(sorted.begin(), sorted.end());
  Distribution d{Family::Empirical, {}};
  for (std::size_t q = 0; q < kQuantiles; ++q)
    d.parameters.push_back(percentile(sorted, static_cast<double>(q) / (kQuantiles - 1)));
  return d;
}

FamilyFit judged(const Distribution& distribution, const std::vector<double>& values) {
  FamilyFit fit{distribution};
  fit.ks = ks_distance(values, distribution);
  if (distribution.family == Family::Constant || distribution.family == Family::Empirical) return fit;
  long double sum = 0;
  for (double value : values) sum += distribution.log_density(value);
  fit.log_likelihood = static_cast<double>(sum);
  const auto k = static_cast<double>(distribution.parameters.size());
  fit.aic = 2 * k - 2 * fit.log_likelihood;
  fit.bic = k * std::log(static_cast<double>(values.size())) - 2 * fit.log_likelihood;
  return fit;
}

}  // namespace

double digamma(double x) {
  double result = 0;
  for (; x < 10; ++x) result -= 1 / x;
  const double y = 1 / (x * x);
  // Asymptotic series with Bernoulli numbers (Abramowitz and Stegun 6.3.18).
  return result + std::log(x) - 0.5 / x -
         y * (1.0 / 12 -
              y * (1.0 / 120 - y * (1.0 / 252 - y * (1.0 / 240 - y * (1.0 / 132 - y * (691.0 / 32760))))));
}

double trigamma(double x) {
  double result = 0;
  for (; x < 10; ++x) result += 1 / (x * x);
  const double y = 1 / (x * x);
  // Abramowitz and Stegun 6.4.12.
  return result + 1 / x + y / 2 +
         y / x *
             (1.0 / 6 -
              y * (1.0 / 30 - y * (1.0 / 42 - y * (1.0 / 30 - y * (5.0 / 66 - y * (691.0 / 2730))))));
}

double gamma_p(double a, double x) {
  if (x <= 0) return 0;
  const double front = std::exp(a * std::log(x) - x - std::lgamma(a));
  if (x < a + 1) {  // series
    double term = 1 / a, sum = term;
    for (int n = 1; n < 100000 && std::abs(term) > 1e-17 * sum; ++n) sum += term *= x / (a + n);
    return std::min(1.0, sum * front);
  }
  // Continued fraction by Lentz's method.
  constexpr double kTiny = 1e-300;
  double b = x + 1 - a, c = 1 / kTiny, d = 1 / b, h = d;
  for (int i = 1; i < 100000; ++i) {
    const double an = -i * (i - a);
    b += 2;
    d = an * d + b;
    c = b + an / c;
    if (std::abs(d) < kTiny) d = kTiny;
    if (std::abs(c) < kTiny) c = kTiny;
    d = 1 / d;
    const double factor = d * c;
    h *= factor;
    if (std::abs(factor - 1) < 1e-16) break;
  }
  return std::max(0.0, 1 - front * h);
}

std::vector<std::string> Distribution::parameter_names() const {
  switch (family) {
    case Family::Constant:
      return {"value"};
    case Family::Normal:
      return {"mean", "stdev"};
    case Family::LogNormal:
      return {"mu", "sigma"};
    case Family::Gamma:
    case Family::Weibull:
      return {"shape", "scale"};
    case Family::Exponential:
      return {"scale"};
    case Family::NormalMixture:
      return {"weight", "mean1", "stdev1", "mean2", "stdev2"};
    case Family::LogNormalMixture:
      return {"weight", "mu1", "sigma1", "mu2", "sigma2"};
    case Family::Empirical:
      return {"quantiles"};
  }
  return {};
}

double Distribution::log_density(double x) const {
  const std::vector<double>& p = parameters;
  const bool positive = family != Family::Normal && family != Family::NormalMixture;
  if (positive && x <= 0) return -INFINITY;
  switch (family) {
    case Family::Normal:
      return normal_log_density(x, p[0], p[1]);
    case Family::LogNormal:
      return normal_log_density(std::log(x), p[0], p[1]) - std::log(x);
    case Family::Gamma:
      return (p[0] - 1) * std::log(x) - x / p[1] - p[0] * std::log(p[1]) - std::lgamma(p[0]);
    case Family::Weibull:
      return std::log(p[0] / p[1]) + (p[0] - 1) * std::log(x / p[1]) - std::pow(x / p[1], p[0]);
    case Family::Exponential:
      return -std::log(p[0]) - x / p[0];
    case Family::NormalMixture:
    case Family::LogNormalMixture: {
      const double y = family == Family::NormalMixture ? x : std::log(x);
      const double density = log_sum(std::log(p[0]) + normal_log_density(y, p[1], p[2]),
                                     std::log1p(-p[0]) + normal_log_density(y, p[3], p[4]));
      return family == Family::NormalMixture ? density : density - y;
    }
    case Family::Constant:
    case Family::Empirical:
      return 0;
  }
  return 0;
}

double Distribution::cdf(double x) const {
  const std::vector<double>& p = parameters;
  const bool positive = family != Family::Normal && family != Family::NormalMixture &&
                        family != Family::Constant && family != Family::Empirical;
  if (positive && x <= 0) return 0;
  switch (family) {
    case Family::Constant:
      return x >= p[0] ? 1 : 0;
    case Family::Normal:
      return normal_cdf(x, p[0], p[1]);
    case Family::LogNormal:
      return normal_cdf(std::log(x), p[0], p[1]);
    case Family::Gamma:
      return gamma_p(p[0], x / p[1]);
    case Family::Weibull:
      return -std::expm1(-std::pow(x / p[1], p[0]));
    case Family::Exponential:
      return -std::expm1(-x / p[0]);
    case Family::NormalMixture:
    case Family::LogNormalMixture: {
      const double y = family == Family::NormalMixture ? x : std::log(x);
      return p[0] * normal_cdf(y, p[1], p[2]) + (1 - p[0]) * normal_cdf(y, p[3], p[4]);
    }
    case Family::Empirical: {
      if (x < p.front()) return 0;
      if (x >= p.back()) return 1;
      const auto above = std::upper_bound(p.begin(), p.end(), x);
      const auto below = std::prev(above);
      const double part = *above > *below ? (x - *below) / (*above - *below) : 0;
      return (static_cast<double>(below - p.begin()) + part) / static_cast<double>(p.size() - 1);
    }
  }
  return 0;
}

double Distribution::mean() const {
  const std::vector<double>& p = parameters;
  switch (family) {
    case Family::LogNormal:
      return std::exp(p[0] + p[1] * p[1] / 2);
    case Family::Gamma:
      return p[0] * p[1];
    case Family::Weibull:
      return p[1] * std::tgamma(1 + 1 / p[0]);
    case Family::NormalMixture:
      return p[0] * p[1] + (1 - p[0]) * p[3];
    case Family::LogNormalMixture:
      return p[0] * std::exp(p[1] + p[2] * p[2] / 2) + (1 - p[0]) * std::exp(p[3] + p[4] * p[4] / 2);
    case Family::Empirical: {  // between quantiles the density is flat
      double sum = 0;
      for (std::size_t i = 1; i < p.size(); ++i) sum += (p[i - 1] + p[i]) / 2;
      return sum / static_cast<double>(p.size() - 1);
    }
    default:
      return p[0];
  }
}

double Distribution::std() const {
  const std::vector<double>& p = parameters;
  const double m = mean();
  const auto log_square = [](double mu, double sigma) { return std::exp(2 * mu + 2 * sigma * sigma); };
  switch (family) {
    case Family::Constant:
      return 0;
    case Family::Normal:
      return p[1];
    case Family::LogNormal:
      return std::sqrt(log_square(p[0], p[1]) - m * m);
    case Family::Gamma:
      return std::sqrt(p[0]) * p[1];
    case Family::Weibull:
      return std::sqrt(std::max(0.0, p[1] * p[1] * std::tgamma(1 + 2 / p[0]) - m * m));
    case Family::Exponential:
      return p[0];
    case Family::NormalMixture:
      return std::sqrt(std::max(
          0.0, p[0] * (p[1] * p[1] + p[2] * p[2]) + (1 - p[0]) * (p[3] * p[3] + p[4] * p[4]) - m * m));
    case Family::LogNormalMixture:
      return std::sqrt(
          std::max(0.0, p[0] * log_square(p[1], p[2]) + (1 - p[0]) * log_square(p[3], p[4]) - m * m));
    case Family::Empirical: {
      double sum = 0;
      for (std::size_t i = 1; i < p.size(); ++i)
        sum += (p[i - 1] * p[i - 1] + p[i - 1] * p[i] + p[i] * p[i]) / 3;
      return std::sqrt(std::max(0.0, sum / static_cast<double>(p.size() - 1) - m * m));
    }
  }
  return 0;
}

Json Distribution::json() const {
  Json json = Json::object({{"type", to_string(family)}});
  const std::vector<std::string> names = parameter_names();
  if (family == Family::Empirical) {
    Json list = Json::array();
    for (double q : parameters) list.push_back(q);
    json["quantiles"] = std::move(list);
    return json;
  }
  for (std::size_t i = 0; i < names.size(); ++i) json[names[i]] = parameters[i];
  return json;
}

double ks_distance(const std::vector<double>& values, const Distribution& distribution) {
  std::vector<double> sorted = values;
  std::sort(sorted.begin(), sorted.end());
  const auto n = static_cast<double>(sorted.size());
  double most = 0;
  for (std::size_t i = 0; i < sorted.size();) {
    std::size_t end = i;
    while (end < sorted.size() && sorted[end] == sorted[i]) ++end;
    const double at = distribution.cdf(sorted[i]);
    const bool steps = distribution.family == Family::Constant;
    const double before = steps && sorted[i] == distribution.parameters[0] ? 0 : at;
    most = std::max(
        {most, std::abs(before - static_cast<double>(i) / n), std::abs(static_cast<double>(end) / n - at)});
    i = end;
  }
  return most;
}

const FamilyFit* DistributionFits::find(Family family) const {
  for (const FamilyFit& fit : fits) {
    if (fit.distribution.family == family) return &fit;
  }
  return nullptr;
}

Result<DistributionFits> fit_distributions(const std::vector<double>& values) {
  if (values.empty()) return Problem{"fit", "there are no values", ""};
  if (!std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); }))
    return Problem{"fit", "a value is not finite", ""};
  DistributionFits result;
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  const double mean = mean_of(values);
  if (*most - *least <= 1e-12 * std::abs(mean)) {
    result.fits.push_back(judged({Family::Constant, {mean}}, values));
    result.left_out.push_back("all but constant: the values are all alike");
    return result;
  }
  const auto take = [&](Distribution d) { result.fits.push_back(judged(d, values)); };
  take({Family::Normal, {mean, population_std(values)}});
  if (const auto mixture = fit_mixture(values)) {
    take({Family::NormalMixture, *mixture});
  } else {
    result.left_out.push_back("mixtures: fewer than 8 values");
  }
  if (*least > 0) {
    const std::vector<double> logs = logarithms(values);
    take({Family::LogNormal, {mean_of(logs), population_std(logs)}});
    take(fit_gamma(values, logs));
    take(fit_weibull(values, logs));
    take({Family::Exponential, {mean}});
    if (const auto mixture = fit_mixture(logs)) take({Family::LogNormalMixture, *mixture});
  } else {
    result.left_out.push_back("lognormal, gamma, weibull, exponential: a value is not positive");
  }
  std::erase_if(result.fits, [](const FamilyFit& fit) { return !std::isfinite(fit.bic); });
  std::sort(result.fits.begin(), result.fits.end(),
            [](const FamilyFit& a, const FamilyFit& b) { return a.bic < b.bic; });
  take(empirical(values));
  return result;
}

}  // namespace millrace
