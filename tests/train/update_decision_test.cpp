// Tests the decision about each job's update with numbers alone, without stages and ranks.
#include "runtime/train/update_decision.h"

#include <gtest/gtest.h>

#include <limits>

#include "runtime/base/error.h"

namespace millrace {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

std::vector<JobOptions> jobs_with(std::vector<double> clip_norms, ClipScope scope = ClipScope::Model) {
  std::vector<JobOptions> jobs;
  for (const double norm : clip_norms) jobs.push_back({.clip = {.norm = norm, .scope = scope}});
  return jobs;
}

TEST(UpdateDecision, EachJobIsClippedByItsOwnNorm) {
  UpdateDecision decision(jobs_with({0, 2, 2}), Precision::Float32, {}, true);
  EXPECT_TRUE(decision.needs_model_norm());
  EXPECT_FALSE(decision.clips_stages());
  const auto scalars = decision.by_model_norm(1, {1, 4});  // an array of jobs 1 and 2
  ASSERT_EQ(scalars.size(), 2u);
  EXPECT_EQ(scalars[0].gradient_factor, 1);
  EXPECT_DOUBLE_EQ(scalars[1].gradient_factor, 2 / (4 + 1e-6));
  EXPECT_EQ(decision.jobs()[0].norm, -1) << "nothing was measured of another array";
  EXPECT_EQ(decision.jobs()[2].norm, 4);
}

TEST(UpdateDecision, WithoutClippingStagesUpdateByThemselves) {
  const UpdateDecision decision(jobs_with({0}), Precision::Float32, {}, true);
  EXPECT_FALSE(decision.needs_model_norm());
  EXPECT_FALSE(decision.clips_stages());
}

TEST(UpdateDecision, AStagesNormClipsThatStageAlone) {
  UpdateDecision decision(jobs_with({3}, ClipScope::Stage), Precision::Float32, {}, true);
  EXPECT_FALSE(decision.needs_model_norm());
  ASSERT_TRUE(decision.clips_stages());
  std::vector<UpdateScalars> scalars(1);
  decision.clip_stage(0, {6}, StageId(1), /*reports=*/false, scalars);
  EXPECT_DOUBLE_EQ(scalars[0].gradient_factor, 3 / (6 + 1e-6));
  EXPECT_EQ(decision.jobs()[0].norm, -1) << "another stage of the rank reports";
}

TEST(UpdateDecision, RatesGoToTheJobsThatHaveNotEnded) {
  UpdateDecision decision(jobs_with({0, 0}), Precision::Float32, {}, true);
  decision.jobs()[0].lr = 0.5;
  decision.jobs()[1].lr = 0.25;
  decision.jobs()[1].ended = true;
  std::vector<UpdateScalars> scalars(2);
  decision.set_rates(0, 2, scalars);
  EXPECT_EQ(scalars[0].lr, 1);
  EXPECT_FALSE(scalars[0].skip);
  EXPECT_TRUE(scalars[1].skip);
}

TEST(UpdateDecision, AGradientThatIsNotFiniteSkipsItsJobAndLowersItsScale) {
  UpdateDecision decision(jobs_with({0, 0}), Precision::Float16, {.initial = 8}, true);
  ASSERT_TRUE(decision.scales_loss());
  EXPECT_TRUE(decision.needs_model_norm()) << "all stages skip, or none";
  const auto scalars = decision.by_model_norm(0, {kInfinite, 16});
  EXPECT_TRUE(scalars[0].skip);
  EXPECT_FALSE(scalars[1].skip);
  EXPECT_EQ(scalars[1].gradient_factor, 1. / 8);
  EXPECT_EQ(decision.jobs()[0].loss_scale, 8) << "that of the update, not the next one";
  EXPECT_EQ(decision.jobs()[0].scaler.scale(), 4);
  EXPECT_EQ(decision.jobs()[1].scaler.scale(), 8);
  EXPECT_EQ(decision.jobs()[1].norm, 2) << "of the gradient without the scale";
}

TEST(UpdateDecision, TheScaleOfAJobThatHasEndedStays) {
  UpdateDecision decision(jobs_with({0, 0}), Precision::Float16, {.initial = 8}, true);
  decision.jobs()[0].ended = true;
  decision.by_model_norm(0, {kInfinite, 1});
  EXPECT_EQ(decision.jobs()[0].scaler.scale(), 8);
}

TEST(UpdateDecision, ARunEndsWhereNoJobHasAFiniteGradient) {
  UpdateDecision decision(jobs_with({1, 1}), Precision::Float32, {}, true);
  EXPECT_NO_THROW(decision.by_model_norm(0, {kInfinite, 1})) << "the other job goes on";
  EXPECT_THROW(decision.by_model_norm(0, {kInfinite, kInfinite}), NumericError);
  UpdateDecision told(jobs_with({1}), Precision::Float32, {}, false);
  EXPECT_NO_THROW(told.by_model_norm(0, {kInfinite}));
}

TEST(UpdateDecision, AHundredSkippedStepsInARowEndTheRun) {
  UpdateDecision decision(jobs_with({0}), Precision::Float16, {}, true);
  for (int step = 0; step < 99; ++step) ASSERT_NO_THROW(decision.by_model_norm(0, {kInfinite})) << step;
  EXPECT_THROW(decision.by_model_norm(0, {kInfinite}), NumericError);
}

}  // namespace
}  // namespace millrace
