// NCCL needs schedules in which both ends of a pair of ranks list its messages in one order.
#include "runtime/schedule/pair_order.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace millrace {
namespace {

PipelineShape shape_for(const std::vector<int>& replicas, int microbatches,
                        std::vector<StageLink> links = {}) {
  PipelineShape shape{.microbatches = microbatches, .links = std::move(links)};
  int rank = 0;
  for (int r : replicas) {
    auto& stage = shape.ranks_of_stage.emplace_back();
    for (int i = 0; i < r; ++i) stage.emplace_back(rank++);
  }
  return shape;
}

TEST(PairOrder, HoldsForAllKindsAndShapes) {
  const StageLink skip{StageId(0), StageId(2)}, first{StageId(0), StageId(1)}, second{StageId(1), StageId(2)};
  const std::vector<PipelineShape> shapes{
      shape_for({1, 1}, 4), shape_for({1, 1, 1, 1}, 8), shape_for({2, 1}, 8),
      shape_for({1, 2}, 8), shape_for({3, 1, 2}, 12),   shape_for({1, 1, 1}, 5, {first, skip, second})};
  for (ScheduleKind kind : {ScheduleKind::GPipe, ScheduleKind::OneFOneB, ScheduleKind::PipeDream}) {
    for (const PipelineShape& shape : shapes) {
      const Result<Schedule> schedule = make_schedule(kind, shape);
      ASSERT_TRUE(schedule) << to_string(schedule.problems());
      const Problems problems = check_pair_order(*schedule);
      EXPECT_TRUE(problems.empty()) << to_string(kind) << "\n" << to_string(problems);
    }
  }
}

TEST(PairOrder, FindsTheFirstMessageThatDiffers) {
  Schedule schedule = *make_schedule(ScheduleKind::GPipe, shape_for({1, 1}, 4));
  std::vector<Action>& receiver = schedule.ranks[1];
  const auto is_receive = [](const Action& a) { return a.op == Op::RecvActivation; };
  const auto one = std::ranges::find_if(receiver, is_receive);
  const auto other = std::find_if(one + 1, receiver.end(), is_receive);
  ASSERT_NE(other, receiver.end());
  std::iter_swap(one, other);
  const Problems problems = check_pair_order(schedule);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_NE(to_string(problems[0]).find("rank 0 to rank 1: message 1 is 0SEND_F0"), std::string::npos)
      << to_string(problems);
}

}  // namespace
}  // namespace millrace
