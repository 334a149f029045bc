// Planted faults: how they are written, and when they fire.
#include "runtime/base/failpoint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "runtime/base/error.h"
#include "runtime/base/files.h"

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

/// The place "file" is each write, sync and rename after the checkpoint that the fault names.
TEST(Failpoints, AFileCallFails) {
  char name[] = "/tmp/millrace-failpoint-XXXXXX";
  const std::filesystem::path folder = ::mkdtemp(name);
  const auto files = [&] { return std::distance(std::filesystem::directory_iterator(folder), {}); };
  int failed = 0;
  for (int hit = 1; hit <= 4; ++hit) {
    Failpoints faults(*failpoints_from("file:step=7:hit=" + std::to_string(hit) + ":action=full"), 0,
                      steady_clock());
    EXPECT_TRUE(write_file_atomically(folder / "one", "old")) << "no checkpoint yet";
    faults.reach("checkpoint", 7);
    const Status written = write_file_atomically(folder / "one", "new");
    EXPECT_EQ(*read_file(folder / "one"), written ? "new" : "old");
    if (written) continue;
    ++failed;
    EXPECT_NE(to_string(written.problems()).find("No space left"), std::string::npos);
    EXPECT_EQ(files(), 1) << "no temporary file stays";
  }
  EXPECT_EQ(failed, 3) << "write, sync, rename; the folder's sync is not worth a failure";
  EXPECT_TRUE(write_file_atomically(folder / "one", "new")) << "no faults any more";
  std::filesystem::remove_all(folder);
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
