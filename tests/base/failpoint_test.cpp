// Planted faults: how they are written, and when they fire.
#include "runtime/base/failpoint.h"

#include <gtest/gtest.h>

#include "runtime/base/error.h"

namespace millrace {
namespace {

TEST(Failpoints, FireAtTheirRankStepAndHit) {
  const auto points = failpoints_from("update:rank=1:step=5:hit=2:action=nan,forward:action=throw");
  ASSERT_TRUE(points) << to_string(points.problems());
  Failpoints other(*points, 0, steady_clock()), mine(*points, 1, steady_clock());
  EXPECT_FALSE(other.reach("update", 5));
  EXPECT_FALSE(mine.reach("update", 4));
  EXPECT_FALSE(mine.reach("update", 5)) << "the first time";
  EXPECT_TRUE(mine.reach("update", 5));
  EXPECT_FALSE(mine.reach("update", 5)) << "once";
  EXPECT_THROW(other.reach("forward", 0), InternalError);
  EXPECT_THROW(mine.reach("forward", 7), InternalError);
}

/// A test whose fault did not fire has shown nothing: it looks for this line.
TEST(Failpoints, OneThatDidNotFireIsTold) {
  testing::internal::CaptureStderr();
  { const Failpoints idle(*failpoints_from("update:step=5:action=kill"), 0, steady_clock()); }
  EXPECT_NE(
      testing::internal::GetCapturedStderr().find("failpoint update:step=5:hit=1:action=kill did not fire"),
      std::string::npos);
}

TEST(Failpoints, WhatCannotBeReadIsRefused) {
  for (const char* text :
       {"update:action=melt", "update:step=x:action=nan", ":action=nan", "update:hit=0:action=nan",
        "update:nan", "update:rank=-1:action=nan", "update:delay=inf", "update:action=delay"})
    EXPECT_FALSE(failpoints_from(text)) << text;
  const auto delay = failpoints_from("send:delay=0.25");
  ASSERT_TRUE(delay);
  EXPECT_EQ(delay->front().action, FailpointAction::Delay);
  EXPECT_EQ(delay->front().seconds, 0.25);
}

}  // namespace
}  // namespace millrace
