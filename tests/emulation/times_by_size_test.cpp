// Times of microbatches of lengths that were measured, and of others.
#include <gtest/gtest.h>

#include "runtime/base/error.h"
#include "runtime/emulation/times_by_size.h"

namespace millrace {
namespace {

TEST(TimesBySize, OneMeasuredSizeStandsForAll) {
  TimesBySize times;
  EXPECT_THROW(times.at(10), InternalError);
  times.add(10, {.forward = 1, .backward_input = 2, .backward_weight = 3});
  for (const double size : {0, 5, 10, 1000}) {
    EXPECT_EQ(times.at(size).forward, 1);
    EXPECT_EQ(times.at(size).backward_input, 2);
    EXPECT_EQ(times.at(size).backward_weight, 3);
  }
}

TEST(TimesBySize, MicrobatchesOfOneSizeTakeTheirMean) {
  TimesBySize times;
  times.add(10, {.forward = 1});
  times.add(20, {.forward = 5});
  times.add(10, {.forward = 2});
  EXPECT_EQ(times.at(10).forward, 1.5);
  EXPECT_EQ(times.at(20).forward, 5);
}

TEST(TimesBySize, OthersLieOnLinesAndBeyondTheEndsFollowTheSize) {
  TimesBySize times;
  times.add(20, {.forward = 5, .backward_weight = 50});
  times.add(10, {.forward = 1, .backward_weight = 10});
  times.add(40, {.forward = 6, .backward_weight = 60});
  EXPECT_DOUBLE_EQ(times.at(15).forward, 3);
  EXPECT_DOUBLE_EQ(times.at(15).backward_weight, 30);
  EXPECT_DOUBLE_EQ(times.at(35).forward, 5.75);
  EXPECT_DOUBLE_EQ(times.at(80).forward, 12);
  EXPECT_DOUBLE_EQ(times.at(5).forward, 0.5);
  EXPECT_DOUBLE_EQ(times.at(0).forward, 0);
}

}  // namespace
}  // namespace millrace
