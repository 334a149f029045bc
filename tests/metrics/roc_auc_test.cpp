// The area under the ROC curve: known values, ties, and how close bins come to the scores themselves.
#include "runtime/metrics/roc_auc.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/base/random.h"

namespace millrace {
namespace {

TEST(RocAuc, CountsPairsInOrderAndHalfOfTheTies) {
  EXPECT_EQ(roc_auc(std::vector{2.0, 0.0}, std::vector{0.0, 3.0}), 1);
  EXPECT_EQ(roc_auc(std::vector{0.0, 2.0}, std::vector{3.0, 0.0}), 0);
  EXPECT_EQ(roc_auc(std::vector{4.0}, std::vector{5.0}), 0.5);
  // Negatives in bins 0 0 1 2, positives in bins 1 2: 2 + 0.5 and 3 + 0.5 of 4 pairs each.
  EXPECT_EQ(roc_auc(std::vector{2.0, 1.0, 1.0}, std::vector{0.0, 1.0, 1.0}), 6.0 / 8);
}

TEST(RocAuc, NeedsBothLabels) {
  EXPECT_TRUE(std::isnan(roc_auc(std::vector{0.0, 0.0}, std::vector{1.0, 2.0})));
  EXPECT_TRUE(std::isnan(roc_auc(std::vector{1.0, 0.0}, std::vector{0.0, 0.0})));
}

TEST(RocAuc, BinsTakeAllScores) {
  EXPECT_EQ(roc_bin(-1e9), 0u);
  EXPECT_EQ(roc_bin(HUGE_VAL), kRocBins - 1);
  EXPECT_EQ(roc_bin(0), kRocBins / 2);
  EXPECT_EQ(roc_bin(1.0 / kRocBinsPerUnit), kRocBins / 2 + 1);
}

/// All pairs of 4,000 scores, one by one.
TEST(RocAuc, OfBinsIsThatOfTheScores) {
  RandomStream random(3);
  std::vector<double> negatives(kRocBins, 0.0), positives(kRocBins, 0.0), scores[2];
  for (int i = 0; i < 4000; ++i) {
    const bool clicked = random.uniform() < 0.2;
    scores[clicked].push_back(random.normal() + (clicked ? -2 : -3.2));
    ++(clicked ? positives : negatives)[roc_bin(scores[clicked].back())];
  }
  double ordered = 0;
  for (const double negative : scores[0])
    ordered += double(std::ranges::count_if(scores[1], [&](double positive) { return positive > negative; }));
  EXPECT_NEAR(roc_auc(negatives, positives), ordered / double(scores[0].size()) / double(scores[1].size()),
              1e-4);
}

}  // namespace
}  // namespace millrace
