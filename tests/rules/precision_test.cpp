#include "runtime/rules/precision.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

constexpr LossScaleKind kDynamic{.scaling = LossScaling::Dynamic};

TEST(LossScale, IsReadAsItIsWritten) {
  for (const std::string text : {"none", "dynamic", "1024", "0.5", "1"}) {
    const Result<LossScaleKind> kind = loss_scale_from(text);
    ASSERT_TRUE(kind) << text;
    EXPECT_EQ(to_string(*kind), text);
  }
  EXPECT_EQ(loss_scale_from("2.5e2")->fixed, 250);
  for (const std::string text : {"", "0", "-1", "inf", "nan", "1e31", "1e-50", "12x", "Dynamic", " 2"})
    EXPECT_FALSE(loss_scale_from(text)) << text;
}

TEST(LossScale, IsDynamicForFloat16Alone) {
  EXPECT_EQ(kind_of(Precision::Float16, {}).scaling, LossScaling::Dynamic);
  EXPECT_EQ(kind_of(Precision::BFloat16, {}).scaling, LossScaling::None);
  EXPECT_EQ(kind_of(Precision::Float32, {}).scaling, LossScaling::None);
  EXPECT_EQ(kind_of(Precision::Float16, {.kind = LossScaleKind{}}).scaling, LossScaling::None);
}

/// GradScaler's rule, over a sequence that meets all of it.
TEST(LossScale, GrowsAfterAnIntervalAndBacksOffAtOnce) {
  LossScaler scaler(Precision::Float16, {.initial = 8, .growth_interval = 2});
  std::vector<double> scales;
  for (const bool finite : {false, false, true, false, true, true, true, true, true}) {
    scaler.completed(finite);
    scales.push_back(scaler.scale());
  }
  EXPECT_EQ(scales, (std::vector<double>{4, 2, 2, 1, 1, 2, 2, 4, 4}));
  EXPECT_EQ(scaler.state().skipped, 3);
  EXPECT_EQ(scaler.state().skipped_in_a_row, 0);
  EXPECT_EQ(scaler.unscale(), 0.25);
  LossScaler again(Precision::Float16, {.growth_interval = 2});
  again.set_state(scaler.state());
  again.completed(true);
  EXPECT_EQ(again.scale(), 8) << "one update was before";
}

TEST(LossScale, StopsGrowingAtTheEndOfFloat32) {
  LossScaler scaler(Precision::Float16, {.initial = 0x1p99, .growth = 0x1p19, .growth_interval = 1});
  for (int i = 0; i < 5; ++i) scaler.completed(true);
  EXPECT_EQ(scaler.scale(), 0x1p118);
}

TEST(LossScale, FixedSkipsButStays) {
  LossScaler scaler(Precision::BFloat16, {.kind = LossScaleKind{LossScaling::Fixed, 3}});
  scaler.completed(false);
  EXPECT_EQ(scaler.scale(), 3);
  EXPECT_EQ(scaler.unscale(), double(float(1.0 / 3))) << "rounded as GradScaler's";
  EXPECT_EQ(scaler.state().skipped, 1);
}

TEST(LossScale, NeedsAFlush) {
  const Problems problems = validate(Precision::Float16, {}, true);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].where, "--loss-scale");
  EXPECT_NE(problems[0].what.find("float16"), std::string::npos);
  EXPECT_TRUE(validate(Precision::Float16, {.kind = LossScaleKind{}}, true).empty());
  EXPECT_TRUE(validate(Precision::BFloat16, {}, true).empty());
  EXPECT_TRUE(validate(Precision::Float16, {}, false).empty());
}

TEST(LossScale, NumbersOutOfRangeAreRefused) {
  const auto refused = [](LossScaleOptions options) {
    options.kind = kDynamic;
    return validate(Precision::Float32, options, false).size();
  };
  EXPECT_EQ(refused({}), 0u);
  EXPECT_EQ(refused({.initial = 0}), 1u);
  EXPECT_EQ(refused({.growth = 1}), 1u);
  EXPECT_EQ(refused({.backoff = 1}), 1u);
  EXPECT_EQ(refused({.backoff = 0}), 1u);
  EXPECT_EQ(refused({.growth_interval = 0}), 1u);
  EXPECT_EQ(validate(Precision::BFloat16, {.initial = 4}, false).size(), 1u)
      << "says nothing without dynamic";
}

}  // namespace
}  // namespace millrace
