// Orders from measured costs.
#include "runtime/schedule/list_schedule.h"

#include <gtest/gtest.h>

#include "runtime/base/random.h"
#include "tests/schedule/every_shape.h"

namespace millrace {
namespace {

ScheduleCosts random_costs(const PipelineShape& shape, RandomStream& random) {
  const auto some = [&](std::size_t count, double most) {
    std::vector<double> values(count);
    for (double& v : values) v = random.uniform(0.05, most);
    return values;
  };
  const auto stages = static_cast<std::size_t>(shape.num_stages());
  return {.forward = some(stages, 1),
          .backward_input = some(stages, 1),
          .backward_weight = some(stages, 1),
          .reduce = some(stages, 0.5),
          .update = some(stages, 0.1),
          .transfer = some(shape.all_links().size(), random.below(2) ? 0.3 : 0.06)};
}

PipelineShape random_shape(RandomStream& random) {
  const int p = 1 + static_cast<int>(random.below(6)), m = 4 + static_cast<int>(random.below(13));
  switch (random.below(4)) {
    case 0:
      return v_shape(p, m, 1 + static_cast<int>(random.below(2)));
    case 1:
      return interleaved_shape(p, 2 + static_cast<int>(random.below(2)), m);
    case 2: {
      std::vector<int> replicas(p);
      for (int& r : replicas) r = 1 + static_cast<int>(random.below(3));
      return replicated_shape(replicas, m);
    }
    default:
      return chain_shape(p, m);
  }
}

TEST(ListSchedule, IsNeverWorseThanTheBestFixedSchedule) {
  RandomStream random(29);
  int better = 0, rounds = 100;
  for (int round = 0; round < rounds; ++round) {
    const PipelineShape shape = random_shape(random);
    const ScheduleCosts costs = random_costs(shape, random);
    const Result<Schedule> ordered = list_schedule(shape, costs);
    ASSERT_TRUE(ordered) << to_string(ordered.problems());
    ASSERT_EQ(to_string(check(*ordered, shape, Transport::Buffered)), "");
    const Schedule blocking = for_rendezvous(*ordered, shape);
    ASSERT_EQ(to_string(check(blocking, shape, Transport::Rendezvous)), "");
    const double time = simulate(*ordered, shape, costs).makespan;
    double best = std::numeric_limits<double>::infinity();
    for (ScheduleKind kind : generated_kinds()) {
      if (is_asynchronous(kind) || kind == ScheduleKind::AutoOrder) continue;
      const Result<Schedule> fixed = make_schedule(kind, shape);
      if (fixed) best = std::min(best, simulate(*fixed, shape, costs).makespan);
    }
    EXPECT_LE(time, best * (1 + 1e-12));
    better += time < best * 0.99;
  }
  EXPECT_GT(better, rounds / 2);  // most of the time by more than 1 %
}

TEST(ListSchedule, KeepsItsCap) {
  RandomStream random(31);
  for (int round = 0; round < 40; ++round) {
    const PipelineShape shape = random_shape(random);
    const ScheduleCosts costs = random_costs(shape, random);
    const auto stages = shape.stages_of_ranks();
    for (int most : {100, 8, 4, 2, 1}) {
      std::vector<int> cap;
      for (const auto& own : stages) cap.push_back(most * static_cast<int>(own.size()));
      const Result<Schedule> ordered = list_schedule(shape, costs, cap);
      ASSERT_TRUE(ordered) << to_string(ordered.problems());
      ASSERT_EQ(to_string(check(*ordered, shape, Transport::Buffered)), "");
      const Peaks peaks = peaks_of(*ordered, shape);
      for (std::size_t r = 0; r < cap.size(); ++r) EXPECT_LE(peaks.stash[r], cap[r]);
    }
  }
}

TEST(ListSchedule, ReachesTheBestWithEqualCosts) {
  for (int p : {2, 4, 6}) {
    const std::vector<double> chain(p, 1), v(static_cast<std::size_t>(2 * p), 0.5);
    const PipelineShape line = chain_shape(p, 3 * p), both = v_shape(p, 3 * p);
    const ScheduleCosts unit{.forward = chain, .backward_input = chain, .backward_weight = chain};
    const ScheduleCosts half{.forward = v, .backward_input = v, .backward_weight = v};
    // ZB-H1's idle time p - 1 and memory p; ZB-V's (p - 1) / 2.
    const Schedule ordered = *list_schedule(line, unit);
    EXPECT_DOUBLE_EQ(simulate(ordered, line, unit).makespan, 9.0 * p + p - 1);
    EXPECT_LE(std::ranges::max(peaks_of(ordered, line).stash), p);
    EXPECT_LE(simulate(*list_schedule(both, half), both, half).makespan, 9.0 * p + (p - 1) / 2.0);
  }
}

TEST(ListSchedule, RefusesCapsThatCannotWork) {
  const PipelineShape shape = v_shape(2, 4);
  const std::vector<double> unit(4, 1);
  const ScheduleCosts costs{.forward = unit, .backward_input = unit, .backward_weight = unit};
  const Result<Schedule> low = list_schedule(shape, costs, {2, 1});
  ASSERT_FALSE(low);
  EXPECT_NE(to_string(low.problems()).find("below its 2 stages"), std::string::npos);
  EXPECT_FALSE(list_schedule(shape, costs, {2, 2, 2}));
}

}  // namespace
}  // namespace millrace
