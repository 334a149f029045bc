// Fits against Boost.Math: densities, distribution functions, and that no other parameters are likelier.
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/math/distributions/exponential.hpp>
#include <boost/math/distributions/gamma.hpp>
#include <boost/math/distributions/lognormal.hpp>
#include <boost/math/distributions/normal.hpp>
#include <boost/math/distributions/weibull.hpp>
#include <boost/math/special_functions/digamma.hpp>
#include <boost/math/special_functions/trigamma.hpp>
#include <cmath>

#include "experiments/io/instrument/distribution_fit.h"
#include "experiments/io/instrument/statistics.h"
#include "runtime/base/random.h"

namespace millrace {
namespace {

template <class Oracle>
void expect_equal(const Distribution& d, const Oracle& oracle) {
  for (double x : {1e-4, 0.01, 0.3, 0.9, 1.0, 1.7, 4.0, 20.0}) {
    const double density = boost::math::pdf(oracle, x), below = boost::math::cdf(oracle, x);
    EXPECT_NEAR(d.cdf(x), below, 1e-12) << x;
    if (density > 1e-250) {
      EXPECT_NEAR(d.log_density(x), std::log(density), 1e-9 * std::abs(std::log(density)) + 1e-12) << x;
    }
  }
  EXPECT_NEAR(d.mean(), boost::math::mean(oracle), 1e-12);
  EXPECT_NEAR(d.std(), boost::math::standard_deviation(oracle), 1e-10);
}

TEST(Distributions, AreBoosts) {
  namespace bm = boost::math;
  for (double shape : {0.3, 1.0, 2.5, 40.0}) {
    expect_equal({Family::Gamma, {shape, 0.4}}, bm::gamma_distribution<>(shape, 0.4));
    expect_equal({Family::Weibull, {shape, 1.3}}, bm::weibull_distribution<>(shape, 1.3));
  }
  expect_equal({Family::Normal, {0.5, 0.2}}, bm::normal_distribution<>(0.5, 0.2));
  expect_equal({Family::LogNormal, {-0.5, 0.6}}, bm::lognormal_distribution<>(-0.5, 0.6));
  expect_equal({Family::Exponential, {0.7}}, bm::exponential_distribution<>(1 / 0.7));
  for (double x : {0.01, 0.5, 1.0, 3.3, 20.0, 1e4}) {
    EXPECT_NEAR(digamma(x), bm::digamma(x), 1e-12 * std::max(1.0, std::abs(bm::digamma(x))));
    EXPECT_NEAR(trigamma(x), bm::trigamma(x), 1e-12 * std::max(1.0, bm::trigamma(x)));
  }
}

std::vector<double> sample(std::uint64_t seed, std::size_t n, double (*draw)(RandomStream&)) {
  RandomStream random(seed);
  std::vector<double> values(n);
  for (double& value : values) value = draw(random);
  return values;
}

double likelihood(const Distribution& d, const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += d.log_density(value);
  return sum;
}

TEST(DistributionFits, AreAtTheTopOfTheLikelihood) {
  const std::vector<double> values = sample(
      3, 2'000, [](RandomStream& r) { return 0.1 - 0.5 * std::log(1 - r.uniform()) + 0.2 * r.uniform(); });
  const DistributionFits fits = *fit_distributions(values);
  for (Family family : {Family::Normal, Family::LogNormal, Family::Gamma, Family::Weibull,
                        Family::Exponential, Family::NormalMixture, Family::LogNormalMixture}) {
    const FamilyFit* fit = fits.find(family);
    ASSERT_NE(fit, nullptr) << to_string(family);
    const double top = likelihood(fit->distribution, values);
    EXPECT_NEAR(top, fit->log_likelihood, 1e-6);
    EXPECT_NEAR(fit->aic, 2.0 * static_cast<double>(fit->distribution.parameters.size()) - 2 * top, 1e-6);
    for (std::size_t p = 0; p < fit->distribution.parameters.size(); ++p) {
      for (double factor : {0.99, 1.01}) {
        Distribution other = fit->distribution;
        other.parameters[p] *= factor;
        EXPECT_LT(likelihood(other, values), top + 1e-3) << to_string(family) << " " << p;
      }
    }
  }
}

TEST(DistributionFits, ChooseTheFamilyThatMadeTheValues) {
  const auto best = [](const std::vector<double>& values) {
    return fit_distributions(values)->fits[0].distribution.family;
  };
  EXPECT_EQ(best(sample(1, 1500, [](RandomStream& r) { return 0.5 + 0.02 * r.normal(); })), Family::Normal);
  EXPECT_EQ(best(sample(2, 1500, [](RandomStream& r) { return std::exp(-1 + 0.8 * r.normal()); })),
            Family::LogNormal);
  EXPECT_EQ(best(sample(3, 1500, [](RandomStream& r) { return -0.3 * std::log(1 - r.uniform()); })),
            Family::Exponential);
  EXPECT_EQ(
      best(sample(4, 1500, [](RandomStream& r) { return std::pow(-std::log(1 - r.uniform()), 1 / 3.0); })),
      Family::Weibull);
  EXPECT_EQ(best(sample(5, 3000,
                        [](RandomStream& r) {
                          return -std::log((1 - r.uniform()) * (1 - r.uniform()) * (1 - r.uniform()));
                        })),
            Family::Gamma);
}

/// Preprocessing of UNET3D has two modes: a normal is far off, a mixture of two log-normals is not.
TEST(DistributionFits, TwoModesNeedAMixture) {
  const std::vector<double> values = sample(6, 4000, [](RandomStream& r) {
    return r.uniform() < 0.53 ? 0.007 * std::exp(0.1 * r.normal()) : 0.27 * std::exp(0.1 * r.normal());
  });
  const DistributionFits fits = *fit_distributions(values);
  EXPECT_EQ(fits.fits[0].distribution.family, Family::LogNormalMixture);
  EXPECT_LT(fits.fits[0].ks, 0.03);
  EXPECT_GT(fits.find(Family::Normal)->ks, 0.2);
  EXPECT_NEAR(fits.fits[0].distribution.parameters[0], 0.53, 0.03);
}

TEST(DistributionFits, OddValues) {
  EXPECT_FALSE(fit_distributions({}));
  EXPECT_FALSE(fit_distributions({1, NAN}));
  const DistributionFits alike = *fit_distributions({2, 2, 2});
  ASSERT_EQ(alike.fits.size(), 1u);
  EXPECT_EQ(alike.fits[0].distribution.family, Family::Constant);
  EXPECT_EQ(alike.fits[0].ks, 0);
  EXPECT_TRUE(fit_distributions({1})->find(Family::Constant));
  const DistributionFits zero = *fit_distributions({0, 1, 2, 3});
  EXPECT_EQ(zero.find(Family::Gamma), nullptr);
  EXPECT_EQ(zero.left_out.size(), 2u);
  for (const FamilyFit& fit : zero.fits) EXPECT_TRUE(std::isfinite(fit.ks));
}

TEST(DistributionFits, KolmogorovSmirnovByHand) {
  // F(x) = x on [0, 1] as quantiles; steps of 1/2 at 0.2 and 0.9.
  Distribution uniform{Family::Empirical, {0, 0.25, 0.5, 0.75, 1}};
  EXPECT_NEAR(ks_distance({0.2, 0.9}, uniform), 0.4, 1e-12);
  EXPECT_NEAR(uniform.mean(), 0.5, 1e-12);
  EXPECT_NEAR(uniform.std(), std::sqrt(1 / 12.0), 1e-12);
}

TEST(Statistics, QuantilesAndPlane) {
  const Summary s = summary_of({1, 2, 3, 4});
  EXPECT_DOUBLE_EQ(s.q1, 1.25);
  EXPECT_DOUBLE_EQ(s.q3, 3.75);
  EXPECT_DOUBLE_EQ(s.median, 2.5);
  EXPECT_DOUBLE_EQ(summary_of({7}).q3, 7);
  EXPECT_DOUBLE_EQ(percentile({1, 2, 3, 4}, 0.01), 1.03);
  const Plane one = fit_plane({{1, 1}, {1, 2}, {1, 4}}, {3, 5, 9});  // ranks never vary
  EXPECT_NEAR(one.a, 0, 1e-12);
  EXPECT_NEAR(one.b, 2, 1e-12);
  EXPECT_NEAR(one.c, 1, 1e-12);
  const Plane line = fit_plane({{1, 1}, {2, 2}, {4, 4}}, {2, 4, 8});  // ranks and batch vary together
  EXPECT_NEAR(line.a, 1, 1e-12);
  EXPECT_NEAR(line.b, 1, 1e-12);
  EXPECT_NEAR(fit_plane({{1, 1}}, {5}).c, 5, 1e-12);
}

}  // namespace
}  // namespace millrace
