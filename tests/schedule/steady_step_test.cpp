// Steps that follow each other without a barrier.
#include <gtest/gtest.h>

#include "runtime/schedule/simulate.h"

namespace millrace {
namespace {

ScheduleCosts unit_costs(const PipelineShape& shape, double scale) {
  const std::vector<double> each(shape.num_stages(), scale);
  return {.forward = each, .backward_input = each, .backward_weight = each};
}

// With p = 4, m = 8 and F = I = W = 1 a rank computes for 24. Idle time inside a rank's list stays, idle time
// before and after it disappears.
TEST(SteadyStep, OnlyIdleTimeInsideTheListsStays) {
  struct Case {
    ScheduleKind kind;
    PipelineShape shape;
    double scale, makespan, steady;
  };
  const Case cases[] = {{ScheduleKind::GPipe, chain_shape(4, 8), 1, 33, 33},
                        {ScheduleKind::OneFOneB, chain_shape(4, 8), 1, 33, 33},
                        {ScheduleKind::ZeroBubbleH1, chain_shape(4, 8), 1, 27, 27},
                        {ScheduleKind::ZeroBubbleH2, chain_shape(4, 8), 1, 27, 24},
                        {ScheduleKind::ZeroBubbleV, v_shape(4, 8), 0.5, 25.5, 24},
                        {ScheduleKind::OneFOneB, chain_shape(1, 8), 1, 24, 24}};
  for (const Case& c : cases) {
    const Schedule schedule = *make_schedule(c.kind, c.shape);
    const ScheduleCosts costs = unit_costs(c.shape, c.scale);
    EXPECT_DOUBLE_EQ(simulate(schedule, c.shape, costs).makespan, c.makespan) << to_string(c.kind);
    EXPECT_DOUBLE_EQ(steady_step(schedule, c.shape, costs), c.steady) << to_string(c.kind);
  }
}

TEST(SteadyStep, ReplicasKeepTheirTurns) {
  PipelineShape shape{.microbatches = 5, .ranks_of_stage = {{RankId(0), RankId(1)}, {RankId(2)}}};
  const Schedule schedule = *make_schedule(ScheduleKind::OneFOneB, shape);
  const ScheduleCosts costs{.forward = {2, 1}, .backward_input = {2, 1}, .backward_weight = {2, 1}};
  const double makespan = simulate(schedule, shape, costs).makespan;
  EXPECT_LE(steady_step(schedule, shape, costs), makespan);
  EXPECT_GE(steady_step(schedule, shape, costs), 18);  // three microbatches of six on the first rank
  PipelineShape longer = shape;
  const Schedule repeated = repeat_steps(schedule, longer, 3);
  for (std::size_t rank = 0; rank < repeated.ranks.size(); ++rank) {
    for (const Action& a : repeated.ranks[rank])
      EXPECT_EQ(longer.rank_of(a.stage, a.microbatch).value, static_cast<int>(rank)) << to_string(a);
  }
}

TEST(SteadyStep, IsNeverLongerThanTheMakespan) {
  for (ScheduleKind kind : {ScheduleKind::GPipe, ScheduleKind::OneFOneB, ScheduleKind::ZeroBubbleH1,
                            ScheduleKind::ZeroBubbleH2}) {
    for (int p : {2, 3, 5}) {
      for (int m : {1, 4, 9}) {
        const PipelineShape shape = chain_shape(p, m);
        const Schedule schedule = *make_schedule(kind, shape);
        ScheduleCosts costs = unit_costs(shape, 1);
        for (int s = 0; s < p; ++s) costs.backward_weight[s] += 0.25 * s;
        costs.update.assign(p, 0.5);
        EXPECT_LE(steady_step(schedule, shape, costs), simulate(schedule, shape, costs).makespan + 1e-9)
            << to_string(kind) << " " << p << " " << m;
      }
    }
  }
}

}  // namespace
}  // namespace millrace
