#include "runtime/rules/learning_rate.h"

#include <gtest/gtest.h>

#include <cmath>

namespace millrace {
namespace {

/// Compares with published rates, to the digits that their sources print.
TEST(LearningRate, NvidiasBertPhaseOne) {
  const LearningRateOptions bert{.base = 6e-3,
                                 .policy = RatePolicy::Polynomial,
                                 .warmup_fraction = 0.2843,
                                 .total_steps = 7038,
                                 .power = 0.5,
                                 .count_from = 1};
  EXPECT_NEAR(learning_rate(bert, 2000 - 1), 5.9972910e-3, 5e-11);
  EXPECT_NEAR(learning_rate(bert, 2001 - 1), 5.0758946e-3, 5e-11);
}

TEST(LearningRate, MlperfsGnmt) {
  const LearningRateOptions gnmt{.base = 1e-3,
                                 .policy = RatePolicy::Gnmt,
                                 .warmup_steps = 200,
                                 .warmup = WarmUp::Exponential,
                                 .total_steps = 3000,
                                 .gamma = 0.5,
                                 .count_from = 1};
  EXPECT_NEAR(learning_rate(gnmt, 1 - 1), 1.0232930e-5, 5e-13);
  EXPECT_EQ(learning_rate(gnmt, 200 - 1), 1e-3);
  EXPECT_EQ(learning_rate(gnmt, 1997 - 1), 1e-3);
  EXPECT_EQ(learning_rate(gnmt, 1998 - 1), 5e-4);
  EXPECT_EQ(learning_rate(gnmt, 1998 + 250 - 1), 2.5e-4);
  EXPECT_EQ(learning_rate(gnmt, 3000 - 1), 6.25e-5);
}

/// The profiler's, NVIDIA's v0.5: update 1450 is the first at half the rate.
TEST(LearningRate, NvidiasGnmtIsAMultistepAfterAnExponentialWarmUp) {
  const LearningRateOptions gnmt{.base = 1.75e-3,
                                 .policy = RatePolicy::MultiStep,
                                 .warmup_steps = 1000,
                                 .warmup = WarmUp::Exponential,
                                 .gamma = 0.5,
                                 .milestones = {1450, 1490, 1530, 1570},
                                 .count_from = 1};
  EXPECT_NEAR(learning_rate(gnmt, 0), 1.75e-3 * std::pow(0.01, 0.999), 1e-12);
  EXPECT_EQ(learning_rate(gnmt, 1449 - 1), 1.75e-3);
  EXPECT_EQ(learning_rate(gnmt, 1450 - 1), 1.75e-3 / 2);
  EXPECT_EQ(learning_rate(gnmt, 5000), 1.75e-3 / 16);
}

TEST(LearningRate, MlperfsFirstBertCountsFromZero) {
  const LearningRateOptions bert{.base = 1e-4,
                                 .policy = RatePolicy::Linear,
                                 .warmup_steps = 1562,
                                 .total_steps = 107'538,
                                 .count_from = 0};
  EXPECT_EQ(learning_rate(bert, 0), 0);
  EXPECT_EQ(learning_rate(bert, 781), 1e-4 * 781 / 1562);
  EXPECT_NEAR(learning_rate(bert, 1562), 1e-4 * (1 - 1562 / 107'538.0), 1e-18);
  EXPECT_EQ(learning_rate(bert, 107'538), 0);
}

TEST(LearningRate, PipeDreamsTranslationChangesFromEpochToEpoch) {
  const LearningRateOptions rate{
      .base = 3e-4, .policy = RatePolicy::Polynomial, .total_steps = 100, .steps_per_epoch = 10};
  for (std::int64_t step = 0; step < 100; ++step)
    EXPECT_EQ(learning_rate(rate, step), 3e-4 * std::pow(1 - double(step / 10 * 10) / 100, 2)) << step;
}

TEST(LearningRate, CosineEndsWhereItIsTold) {
  LearningRateOptions rate{.base = 1, .policy = RatePolicy::Cosine, .total_steps = 100, .end = 0.25};
  EXPECT_EQ(learning_rate(rate, 0), 1);
  EXPECT_NEAR(learning_rate(rate, 50), 0.625, 1e-15);
  EXPECT_NEAR(learning_rate(rate, 100), 0.25, 1e-15);
  EXPECT_NEAR(learning_rate(rate, 1000), 0.25, 1e-15);
  rate.warmup_steps = 20;
  rate.after_warmup = true;
  EXPECT_EQ(learning_rate(rate, 20), 1);
  EXPECT_NEAR(learning_rate(rate, 60), 0.625, 1e-15);
}

/// NVIDIA's DLRM: s / W, then 1, then ((D + d - s) / d)^2, then 0.
TEST(LearningRate, DecayBeginsWhereItIsTold) {
  const LearningRateOptions rate{.base = 24,
                                 .policy = RatePolicy::Polynomial,
                                 .warmup_steps = 8000,
                                 .total_steps = 72'000,
                                 .count_from = 1,
                                 .decay_start = 48'000};
  const auto at = [&](std::int64_t s) { return learning_rate(rate, s - 1); };
  EXPECT_EQ(at(2000), 24 * 2000.0 / 8000);
  EXPECT_EQ(at(8000), 24);
  EXPECT_EQ(at(47'999), 24);
  EXPECT_NEAR(at(60'000), 24 * 0.25, 1e-12);
  EXPECT_NEAR(at(66'000), 24 * std::pow(6000.0 / 24'000, 2), 1e-12);
  EXPECT_EQ(at(72'000), 0);
  EXPECT_EQ(at(90'000), 0);
}

TEST(LearningRate, WarmUpRisesToTheBase) {
  LearningRateOptions rate{.base = 0.4, .warmup_steps = 4};
  EXPECT_EQ(learning_rate(rate, 0), 0.1);
  EXPECT_EQ(learning_rate(rate, 3), 0.4);
  rate.warmup = WarmUp::Exponential;
  for (std::int64_t step = 0; step < 6; ++step) {
    EXPECT_LE(learning_rate(rate, step), learning_rate(rate, step + 1));
    EXPECT_GT(learning_rate(rate, step), 0.004);
  }
  EXPECT_EQ(learning_rate(rate, 3), 0.4);
}

TEST(LearningRate, WhatMeansNothingIsRefused) {
  const auto refused = [](const LearningRateOptions& rate, const std::string& flag) {
    const Problems problems = validate(rate);
    return !problems.empty() && problems[0].where == flag;
  };
  EXPECT_TRUE(refused({.decay_start = 5}, "--lr-decay-start"));
  EXPECT_TRUE(
      refused({.policy = RatePolicy::Linear, .after_warmup = true, .decay_start = 5}, "--lr-decay-start"));
  EXPECT_TRUE(refused({.policy = RatePolicy::Step}, "--lr-step-size"));
  EXPECT_TRUE(refused({.policy = RatePolicy::MultiStep}, "--lr-milestones"));
  EXPECT_TRUE(refused({.milestones = {3}}, "--lr-milestones"));
  EXPECT_TRUE(refused({.policy = RatePolicy::MultiStep, .milestones = {3, 3}}, "--lr-milestones"));
  EXPECT_TRUE(refused({.warmup_steps = 1, .warmup_fraction = 0.1}, "--warmup-fraction"));
  EXPECT_TRUE(refused({.count_from = 1, .steps_per_epoch = 1}, "--lr-count-from"));
  EXPECT_TRUE(validate(LearningRateOptions{.policy = RatePolicy::MultiStep, .milestones = {3, 5}}).empty());
}

}  // namespace
}  // namespace millrace
