// Into how many arrays jobs are divided, by what a job takes in arrays of each size.
#include <gtest/gtest.h>

#include <map>

#include "runtime/profile/array_division.h"

namespace millrace {
namespace {

/// Milliseconds of a job's microbatch by jobs of an array.
ArrayDivision divided(DividedRun run, const std::map<std::size_t, double>& job_ms) {
  return divide_jobs(run, [&](std::size_t jobs) {
    return job_ms.at(jobs) * 1e-3 * static_cast<double>(jobs);  // throws for a size that was not to be tried
  });
}

std::vector<std::size_t> sizes(const ArrayDivision& division) {
  std::vector<std::size_t> all;
  for (const TriedArray& one : division.tried) all.push_back(one.jobs);
  return all;
}

using Sizes = std::vector<std::size_t>;

TEST(ArrayDivision, LongJobsThatGainNothingAreByThemselves) {
  const ArrayDivision found = divided({.jobs = 16, .layers = 40}, {{1, 65}, {2, 76}, {4, 64}});
  EXPECT_EQ(found.arrays, 16u);
  EXPECT_EQ(sizes(found), (Sizes{1, 2, 4}));
  EXPECT_DOUBLE_EQ(found.tried[1].job_s, 0.076);
}

TEST(ArrayDivision, LayersThatKeepThreadsBusyAreNotTriedTogether) {
  const ArrayDivision found = divided({.jobs = 6, .layers = 10}, {{1, 21}});
  EXPECT_EQ(found.arrays, 6u);
  EXPECT_EQ(sizes(found), (Sizes{1}));
}

TEST(ArrayDivision, WhatIsFasterTogetherIsOneArray) {
  const ArrayDivision found = divided({.jobs = 7, .layers = 5}, {{1, 5}, {2, 4}, {4, 3}, {7, 2.5}});
  EXPECT_EQ(found.arrays, 1u);
  EXPECT_EQ(sizes(found), (Sizes{1, 2, 4, 7}));
}

TEST(ArrayDivision, AnotherSizeThanAllMayBeTheBest) {
  EXPECT_EQ(divided({.jobs = 7, .layers = 5}, {{1, 5}, {2, 4}, {4, 3}, {7, 4}}).arrays, 2u);
  EXPECT_EQ(divided({.jobs = 8, .layers = 5}, {{1, 5}, {2, 5.2}, {4, 3}, {8, 2.95}}).arrays, 2u)
      << "2 % are not worth twice the memory";
}

TEST(ArrayDivision, ShortJobsAreTriedInAllSizesAndTogetherWhereItCostsNothing) {
  const ArrayDivision found =
      divided({.jobs = 8, .layers = 5}, {{1, 0.06}, {2, 0.062}, {4, 0.065}, {8, 0.061}});
  EXPECT_EQ(found.arrays, 1u);
  EXPECT_EQ(sizes(found), (Sizes{1, 2, 4, 8}));
  EXPECT_EQ(divided({.jobs = 4, .layers = 5}, {{1, 0.06}, {2, 0.08}, {4, 0.07}}).arrays, 4u);
}

TEST(ArrayDivision, SmallLossesDoNotAddUp) {
  EXPECT_EQ(divided({.jobs = 8, .layers = 5}, {{1, 0.06}, {2, 0.0612}, {4, 0.0624}, {8, 0.0636}}).arrays, 4u)
      << "2 % are lost with pairs, 6 % with all together";
}

TEST(ArrayDivision, ThePipelinesBubbleCounts) {
  // One array of two is 10 % faster a microbatch, but fills 4 stages with 2 microbatches: 1 + 3/2 against 1 +
  // 3/4.
  const std::map<std::size_t, double> job_ms{{1, 5}, {2, 4.5}};
  EXPECT_EQ(divided({.jobs = 2, .layers = 5}, job_ms).arrays, 1u);
  EXPECT_EQ(divided({.jobs = 2, .layers = 5, .stages = 4, .microbatches = 2}, job_ms).arrays, 2u);
}

}  // namespace
}  // namespace millrace
