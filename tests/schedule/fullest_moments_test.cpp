// The moments at which a rank can be fullest, by its list of actions.
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/schedule/schedule.h"

namespace millrace {
namespace {

using Kind = ScheduleKind;

std::vector<StageMoment> moments(Kind kind, int stages, int microbatches, std::size_t stage) {
  const PipelineShape shape = chain_shape(stages, microbatches);
  return fullest_moments(*make_schedule(kind, shape), shape)[stage];
}

TEST(FullestMoments, CountTheReceivesThatAreStillPosted) {
  // The first stage waits for gradients, the last one for activations. The running microbatch's have come.
  EXPECT_EQ(moments(Kind::OneFOneB, 2, 8, 0),
            (std::vector<StageMoment>{{.stashed = 2, .gradients = kReceivesAhead}}));
  EXPECT_EQ(moments(Kind::OneFOneB, 2, 8, 1),
            (std::vector<StageMoment>{{.stashed = 1, .activations = kReceivesAhead}}));
  // Of three microbatches, two are still to come.
  EXPECT_EQ(moments(Kind::OneFOneB, 2, 3, 0), (std::vector<StageMoment>{{.stashed = 2, .gradients = 2}}));
  EXPECT_EQ(moments(Kind::GPipe, 2, 4, 0), (std::vector<StageMoment>{{.stashed = 4, .gradients = 3}}));
  EXPECT_EQ(moments(Kind::GPipe, 2, 4, 1), (std::vector<StageMoment>{{.stashed = 4}}));
}

TEST(FullestMoments, TellHalfDoneBackwardsFromWholeOnes) {
  for (std::size_t stage : {0u, 1u, 2u}) {
    const std::vector<StageMoment> all = moments(Kind::ZeroBubbleH1, 3, 12, stage);
    EXPECT_TRUE(std::ranges::any_of(all, [](const StageMoment& m) { return m.op == Op::BackwardInput; }));
    EXPECT_TRUE(std::ranges::any_of(all, [](const StageMoment& m) { return m.open > 0; }));
    EXPECT_TRUE(std::ranges::is_sorted(all));
  }
}

TEST(FullestMoments, AgreeWithTheStashOfEachRank) {
  for (const Kind kind :
       {Kind::GPipe, Kind::OneFOneB, Kind::ZeroBubbleH1, Kind::ZeroBubbleH2, Kind::PipeDream}) {
    for (const int stages : {1, 2, 4}) {
      const PipelineShape shape = chain_shape(stages, 4 * stages);
      const Schedule schedule = *make_schedule(kind, shape);
      const Peaks peaks = peaks_of(schedule, shape);
      const std::vector<std::vector<StageMoment>> all = fullest_moments(schedule, shape);
      for (std::size_t s = 0; s < all.size(); ++s) {
        ASSERT_FALSE(all[s].empty());
        EXPECT_EQ(std::ranges::max(all[s], {}, &StageMoment::stashed).stashed, peaks.stash[s])
            << to_string(kind) << " " << stages << " " << s;
        for (const StageMoment& m : all[s]) {
          EXPECT_LE(m.open, m.stashed);
          EXPECT_LE(m.activations + m.gradients, kReceivesAhead);
          EXPECT_EQ(m.op == Op::BackwardWeight && m.open == 0, false);
        }
      }
    }
  }
}

}  // namespace
}  // namespace millrace
