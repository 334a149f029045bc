// A long command says how far it is: here, where stderr is no terminal, by a line every ten seconds.
#include "runtime/base/progress_line.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace millrace {
namespace {

TEST(ProgressLine, SaysHowFarItIsEveryTenSeconds) {
  VirtualClock clock;
  testing::internal::CaptureStderr();
  ProgressLine line(clock, "profile", 2'000'000);
  line.show(1, 40, "passes");
  clock.advance(std::chrono::seconds(10));
  line.show(10, 40, "passes");
  line.show(11, 40, "passes");
  clock.advance(std::chrono::seconds(10));
  line.show_bytes(1'000'000);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("profile: 10 of 40 passes, 1/s, 30s left"), std::string::npos) << said;
  EXPECT_NE(said.find("profile: 1.0 of 2.0 MB, 0 MB/s, 20s left"), std::string::npos) << said;
  EXPECT_EQ(std::ranges::count(said, '\n'), 2) << said;
}

TEST(ProgressLine, DurationsAreReadAtAGlance) {
  for (const auto& [seconds, text] : {std::pair(0.2, "0s"),
                                      {59.4, "59s"},
                                      {59.6, "1m00s"},
                                      {200, "3m20s"},
                                      {3599.7, "1h00m"},
                                      {7500, "2h05m"},
                                      {-1, "0s"}})
    EXPECT_EQ(short_duration(seconds), text);
}

TEST(ProgressLine, AWorkingLineThatEndsAtOnceSaysNothing) {
  testing::internal::CaptureStderr();
  { const WorkingLine line("reads"); }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace millrace
