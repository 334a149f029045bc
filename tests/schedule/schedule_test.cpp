#include "runtime/schedule/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "runtime/base/error.h"
#include "runtime/drawing/gantt.h"
#include "tests/schedule/shapes.h"

namespace millrace {
namespace {

const std::vector<ScheduleKind> kKinds = schedule_kinds([](const ScheduleTraits& row) {
  return row.order == OrderSource::Rule && !needs_chunks(row.kind) &&
         row.updates != UpdateMoment::AfterSeveral && row.kind != ScheduleKind::PipeDreamVSync;
});

PipelineShape straight(int stages, int microbatches) {
  return replicated_shape(std::vector<int>(stages, 1), microbatches);
}

ScheduleCosts unit_costs(int stages) {
  const auto n = static_cast<std::size_t>(stages);
  return {.forward = std::vector<double>(n, 1),
          .backward_input = std::vector<double>(n, 1),
          .backward_weight = std::vector<double>(n, 1)};
}

Simulation simulated(ScheduleKind kind, int stages, int microbatches) {
  const PipelineShape shape = straight(stages, microbatches);
  return simulate(*make_schedule(kind, shape), shape, unit_costs(stages));
}

TEST(Simulate, GivesThePublishedFigures) {
  // anchors: p = 4, m = 8, F = 1, B = 2.
  EXPECT_EQ(simulated(ScheduleKind::GPipe, 4, 8).makespan, 33);
  EXPECT_EQ(simulated(ScheduleKind::OneFOneB, 4, 8).makespan, 33);
  EXPECT_EQ(simulated(ScheduleKind::PipeDream, 4, 8).makespan, 33);
  EXPECT_EQ(simulated(ScheduleKind::OneFOneB, 4, 16).makespan, 57);
  EXPECT_EQ(simulated(ScheduleKind::OneFOneB, 8, 32).makespan, 117);
  EXPECT_NEAR(simulated(ScheduleKind::OneFOneB, 4, 8).bubble_fraction[0], 0.273, 0.001);
  EXPECT_EQ(simulated(ScheduleKind::GPipe, 4, 8).peak_stash, (std::vector<int>{8, 8, 8, 8}));
  EXPECT_EQ(simulated(ScheduleKind::OneFOneB, 4, 8).peak_stash, (std::vector<int>{4, 3, 2, 1}));
  EXPECT_EQ(simulated(ScheduleKind::PipeDream, 4, 8).peak_stash, (std::vector<int>{4, 3, 2, 1}));
  EXPECT_EQ(simulated(ScheduleKind::PipeDream, 4, 8).peak_versions, (std::vector<int>{4, 3, 2, 1}));
  EXPECT_EQ(simulated(ScheduleKind::OneFOneB, 4, 8).peak_versions, (std::vector<int>{1, 1, 1, 1}));
}

TEST(Simulate, FollowsTheClosedFormula) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 32; ++m) {
      for (ScheduleKind kind : {ScheduleKind::GPipe, ScheduleKind::OneFOneB}) {
        const Simulation s = simulated(kind, p, m);
        EXPECT_EQ(s.makespan, 3.0 * (m + p - 1)) << to_string(kind) << " p=" << p << " m=" << m;
        for (int r = 0; r < p; ++r)
          EXPECT_EQ(s.peak_stash[r], kind == ScheduleKind::GPipe ? m : std::min(m, p - r));
      }
    }
  }
}

TEST(Simulate, TransfersDelayTheNextStage) {
  const PipelineShape shape = straight(2, 1);
  ScheduleCosts costs = unit_costs(2);
  costs.transfer = {0.5};
  costs.update = {0.25, 0.25};
  // F0 1, wire 0.5, F1 1, B1 2, wire 0.5, B0 2, update 0.25.
  EXPECT_DOUBLE_EQ(simulate(*make_schedule(ScheduleKind::OneFOneB, shape), shape, costs).makespan, 7.25);
}

TEST(Simulate, AWireCarriesOneMessageAtATime) {
  const PipelineShape shape = straight(2, 3);
  ScheduleCosts costs = unit_costs(2);
  costs.transfer = {10};
  const Simulation s = simulate(*make_schedule(ScheduleKind::GPipe, shape), shape, costs);
  // Activations leave at 1, arrive at 11, 21, 31; gradients at 34, 36, 38 -> 44, 54, 64 -> the last backward
  // ends at 66.
  EXPECT_DOUBLE_EQ(s.makespan, 66);
}

std::vector<std::vector<int>> replica_vectors() {
  std::vector<std::vector<int>> all;
  for (int stages = 1; stages <= 6; ++stages) {
    for (int r = 1; r <= 3; ++r) all.push_back(std::vector<int>(stages, r));
  }
  for (auto mixed : {std::vector<int>{2, 1},
                     {1, 2},
                     {3, 1},
                     {1, 3},
                     {2, 3},
                     {3, 2},
                     {2, 1, 1},
                     {1, 2, 1},
                     {1, 1, 2},
                     {3, 2, 1},
                     {1, 2, 3},
                     {2, 1, 2},
                     {3, 1, 2, 1},
                     {1, 1, 2},
                     {1, 2, 2},
                     {1, 3, 2},
                     {1, 4},
                     {4, 1},
                     {2, 4},
                     {1, 1, 3},
                     {1, 1, 1, 3},
                     {15, 1},
                     {4, 2, 2},
                     {8, 4, 4}})
    all.push_back(mixed);
  return all;
}

TEST(Check, AllGeneratedSchedulesAreValidUnderBothTransports) {
  int shapes = 0;
  for (const auto& replicas : replica_vectors()) {
    const int most = *std::ranges::max_element(replicas);
    for (int m = most; m <= std::max(12, 4 * most); ++m) {
      const PipelineShape shape = replicated_shape(replicas, m);
      for (ScheduleKind kind : kKinds) {
        const bool divides = std::ranges::all_of(replicas, [&](int r) { return m % r == 0; });
        for (Transport transport : {Transport::Buffered, Transport::Rendezvous}) {
          const Result<Schedule> schedule = make_schedule(kind, shape, transport);
          ASSERT_EQ(schedule.has_value(), kind != ScheduleKind::PipeDream || divides);
          if (!schedule) continue;
          const Problems problems = check(*schedule, shape, transport);
          ASSERT_TRUE(problems.empty())
              << to_string(kind) << " m=" << m << " replicas " << ::testing::PrintToString(replicas) << "\n"
              << to_string(problems) << "\n"
              << to_string(*schedule);
          ASSERT_GT(simulate(*schedule, shape, unit_costs(shape.num_stages())).makespan, 0);
          ++shapes;
        }
      }
    }
  }
  EXPECT_GT(shapes, 1000);
}

TEST(Check, SkipLinksAreValid) {
  PipelineShape shape = straight(4, 6);
  shape.links = {{StageId(0), StageId(1)},
                 {StageId(0), StageId(2)},
                 {StageId(1), StageId(2)},
                 {StageId(1), StageId(3)},
                 {StageId(2), StageId(3)}};
  for (ScheduleKind kind : kKinds) {
    for (Transport transport : {Transport::Buffered, Transport::Rendezvous}) {
      EXPECT_EQ(to_string(check(*make_schedule(kind, shape, transport), shape, transport)), "")
          << to_string(kind);
    }
  }
}

TEST(Check, FindsADeadlock) {
  const PipelineShape shape = straight(2, 2);
  Schedule schedule = *make_schedule(ScheduleKind::OneFOneB, shape);
  // The last stage waits for its second activation before it gives the first gradient, and the first stage
  // the other way round.
  auto& first = schedule.ranks[0];
  const auto send = std::ranges::find_if(
      first, [](const Action& a) { return a.op == Op::SendActivation && a.microbatch == MicrobatchId(1); });
  const Action moved = *send;
  first.erase(send);
  const auto update = std::ranges::find(first, Op::Update, &Action::op);
  first.insert(update, moved);
  auto& last = schedule.ranks[1];
  const auto receive = std::ranges::find_if(
      last, [](const Action& a) { return a.op == Op::RecvActivation && a.microbatch == MicrobatchId(1); });
  const Action early = *receive;
  last.erase(receive);
  last.insert(last.begin(), early);
  const Problems problems = check(schedule, shape, Transport::Buffered);
  ASSERT_FALSE(problems.empty());
  EXPECT_NE(to_string(problems).find("is stuck at"), std::string::npos) << to_string(problems);
  EXPECT_THROW(simulate(schedule, shape, unit_costs(2)), InternalError);
}

TEST(Text, GoldenAndRoundTrip) {
  const PipelineShape shape = straight(2, 2);
  const Schedule schedule = *make_schedule(ScheduleKind::OneFOneB, shape);
  EXPECT_EQ(to_string(schedule),
            "1f1b\n"
            "0F0 0SEND_F0>1@1 0F1 0SEND_F1>1@1 0RECV_B0<1@1 0B0 0RECV_B1<1@1 0B1 0UPDATE1\n"
            "1RECV_F0<0@0 1F0 1B0 1SEND_B0>0@0 1RECV_F1<0@0 1F1 1B1 1SEND_B1>0@0 1UPDATE1\n");
  for (ScheduleKind kind : kKinds) {
    const Schedule made = *make_schedule(kind, replicated_shape({2, 1, 2}, 4));
    const Result<Schedule> read = parse_schedule(to_string(made), "s");
    ASSERT_TRUE(read) << to_string(read.problems());
    EXPECT_EQ(read->ranks, made.ranks);
  }
  EXPECT_FALSE(parse_schedule("1f1b\n0F0 0X1\n", "s"));
  EXPECT_NE(to_string(parse_schedule("1f1b\n0F0 0X1\n", "s").problems()).find("s:2:5"), std::string::npos);
}

TEST(WarmUp, IsPipeDreams) {
  const auto warm_ups = [](const std::vector<int>& replicas) {
    const PipelineShape shape = replicated_shape(replicas, 60);
    const Schedule schedule = *make_schedule(ScheduleKind::PipeDream, shape);
    std::vector<int> result;
    for (const auto& ranks : shape.ranks_of_stage) {
      const auto& actions = schedule.ranks[ranks[0].value];
      int forwards = 0;
      for (const Action& a : actions) {
        if (a.op == Op::Backward) break;
        forwards += a.op == Op::Forward;
      }
      result.push_back(forwards - 1);
    }
    return result;
  };
  EXPECT_EQ(warm_ups({15, 1}), (std::vector<int>{1, 0}));
  EXPECT_EQ(warm_ups({2, 1, 1}), (std::vector<int>{1, 1, 0}));
  EXPECT_EQ(warm_ups({1, 1, 1, 1}), (std::vector<int>{3, 2, 1, 0}));
  EXPECT_EQ(warm_ups({2, 2}), (std::vector<int>{1, 0}));
}

TEST(Draw, ShowsEveryRankAndEscapes) {
  const Simulation s = simulated(ScheduleKind::OneFOneB, 3, 4);
  const std::string svg = draw_svg(s, straight(3, 4), "a<b>&c");
  EXPECT_NE(svg.find("rank 2"), std::string::npos);
  EXPECT_NE(svg.find("a&lt;b&gt;&amp;c"), std::string::npos);
  EXPECT_EQ(std::ranges::count(draw_text(s, 60), '\n'), 3);
}

TEST(ReplicasThatMeet, NeedOneOrderAndWholeCycles) {
  const auto rounds = [](const PipelineShape& shape, ScheduleKind kind, std::vector<StageId> stages) {
    const Schedule schedule = *make_schedule(kind, shape);
    return check_replicas_meet(schedule, shape, Transport::Buffered, stages);
  };
  PipelineShape shape = chain_shape(2, 8, 2);
  for (const ScheduleKind kind : {ScheduleKind::GPipe, ScheduleKind::OneFOneB, ScheduleKind::ZeroBubbleH1})
    EXPECT_TRUE(rounds(shape, kind, {StageId(0), StageId(1)}).empty()) << to_string(kind);
  shape.microbatches = 7;
  const Problems odd = rounds(shape, ScheduleKind::OneFOneB, {StageId(0)});
  ASSERT_EQ(odd.size(), 1u);
  EXPECT_NE(odd[0].what.find("whole cycles"), std::string::npos) << odd[0].what;
  EXPECT_TRUE(rounds(chain_shape(2, 7), ScheduleKind::OneFOneB, {StageId(0)}).empty());  // nobody to meet

  // One replica of stage 1 turns its forwards round.
  shape = chain_shape(2, 4, 2);
  Schedule schedule = *make_schedule(ScheduleKind::GPipe, shape);
  auto& list = schedule.ranks[3];
  std::vector<std::size_t> forwards;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i].op == Op::Forward) forwards.push_back(i);
  }
  std::swap(list[forwards[0]], list[forwards[1]]);
  EXPECT_EQ(check_replicas_meet(schedule, shape, Transport::Buffered, {StageId(1)}).size(), 1u);
  EXPECT_TRUE(check_replicas_meet(schedule, shape, Transport::Buffered, {StageId(0)}).empty());
}

TEST(ReplicasThatMeet, WaitInACircle) {
  // Stage 0 on one rank gives the second replica its microbatch only when the first one's gradient is back.
  PipelineShape shape = chain_shape(2, 2);
  shape.ranks_of_stage = {{RankId(0)}, {RankId(1), RankId(2)}};
  const auto compute = [](Op op, int stage, int microbatch) {
    return Action{op, StageId(stage), MicrobatchId(microbatch), {}, {}};
  };
  const Schedule schedule = lower(ScheduleKind::Custom, shape,
                                  {{compute(Op::Forward, 0, 0), compute(Op::Backward, 0, 0),
                                    compute(Op::Forward, 0, 1), compute(Op::Backward, 0, 1)},
                                   {compute(Op::Forward, 1, 0), compute(Op::Backward, 1, 0)},
                                   {compute(Op::Forward, 1, 1), compute(Op::Backward, 1, 1)}});
  ASSERT_TRUE(check(schedule, shape, Transport::Buffered).empty());
  const Problems problems = check_replicas_meet(schedule, shape, Transport::Buffered, {StageId(1)});
  ASSERT_FALSE(problems.empty());
  EXPECT_NE(to_string(problems).find("stuck"), std::string::npos);
}

}  // namespace
}  // namespace millrace
