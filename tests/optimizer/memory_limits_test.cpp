// Memory limits: nothing that fits is refused or missed.
#include <gtest/gtest.h>

#include <cstdlib>

#include "optimizer/planner/cut_space.h"
#include "tests/optimizer/memory_limits.h"

namespace millrace {
namespace {

TEST(MemoryLimits, NothingThatFitsIsRefusedOrMissed) {
  LimitCounts counts;
  for (std::uint64_t seed = 0; seed < 150; ++seed) expect_best_within_limits(seed, counts);
  EXPECT_GT(counts.answered, 200);
  EXPECT_GT(counts.refused, 20);
  EXPECT_GT(counts.recomputing, 50);
}

TEST(MemoryLimits, BoundsKnowWhatCrossesBothBordersOfAStage) {
  int stages_seen = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    RandomStream random(seed);
    const LayerGraph graph = uneven_graph(random, 7, false);
    const CostModel model(graph, ranks(3));
    const std::vector<int> order = *graph.topological_order();
    const std::optional<CutSpace> complete = CutSpace::complete(model, order, 2000);
    ASSERT_TRUE(complete);
    const CutSpace linear = CutSpace::linear(model, order);
    for (const CutSpace* space : {&*complete, &linear}) {
      for (int a = 1; a < space->last(); ++a) {
        for (int b = a + 1; b < space->last(); ++b) {
          if (!space->nested(a, b)) continue;
          const std::vector<CutStage> stages{{space->layers(0, a), {RankId(0)}},
                                             {space->layers(a, b), {RankId(1)}},
                                             {space->layers(b, space->last()), {RankId(2)}}};
          const StageMemory held = model.memory_of(stages, 1)[1];
          EXPECT_EQ(space->incoming(a, b), held.incoming) << seed << " " << a << " " << b;
          EXPECT_EQ(space->outgoing(a, b), held.outgoing) << seed << " " << a << " " << b;
          EXPECT_LE(space->workspace(a, b), held.workspace) << seed << " " << a << " " << b;
          const CutSpace::LayerBytes least = space->least_bytes(a, b);
          EXPECT_LE(least.saved, held.saved);
          EXPECT_LE(least.parameters, held.parameters);
          ++stages_seen;
        }
      }
    }
  }
  EXPECT_GT(stages_seen, 1000);
}

// Bytes over a border of vgg16 rise and fall by a factor of 32.
TEST(MemoryLimits, OfARecordedChainAreMetByTheBestStraightPlan) {
  const char* folder = std::getenv("MILLRACE_DATA");
  if (folder == nullptr) GTEST_SKIP() << "MILLRACE_DATA is not set";
  const Result<LayerGraph> graph = recorded_profile(folder, "vgg16");
  ASSERT_TRUE(graph) << to_string(graph.problems());
  const ClusterSpec cluster = ranks(4);
  const int layers = static_cast<int>(graph->nodes.size());
  for (const Recompute recompute : {Recompute::Never, Recompute::Always}) {
    PlannerOptions options{.microbatches = 4,
                           .stages = 4,
                           .schedule = ScheduleKind::OneFOneB,
                           .straight = true,
                           .recompute = recompute};
    CostModel model(*graph, cluster);
    std::vector<int> order = *graph->topological_order();
    std::vector<EveryPlan::Entry> entries;
    for (int a = 1; a < layers; ++a) {
      for (int b = a + 1; b < layers; ++b) {
        for (int c = b + 1; c < layers; ++c) {
          const int ends[] = {0, a, b, c, layers};
          std::vector<CutStage> stages(4);
          for (int s = 0; s < 4; ++s) {
            stages[s].nodes.assign(order.begin() + ends[s], order.begin() + ends[s + 1]);
            stages[s].ranks = {RankId(s)};
            stages[s].recompute = recompute == Recompute::Always;
          }
          const Result<StepEstimate> estimate = model.estimate(ScheduleKind::OneFOneB, 4, stages);
          ASSERT_TRUE(estimate);
          entries.push_back({*std::ranges::max_element(estimate->peak_bytes), estimate->step_s});
        }
      }
    }
    std::ranges::sort(entries, {}, &EveryPlan::Entry::peak);
    double least = kNoPlan;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      least = std::min(least, entries[i].seconds);
      const bool last_of_peak = i + 1 == entries.size() || entries[i + 1].peak > entries[i].peak;
      if (!last_of_peak || i % (entries.size() / 50) != 0) continue;
      options.memory_per_rank = entries[i].peak;
      const Result<Plan> plan = plan_layers(*graph, cluster, options);
      ASSERT_TRUE(plan) << to_string(plan.problems());
      EXPECT_NEAR(plan->predicted_step_s, least, 1e-9 * least) << options.memory_per_rank;
    }
    options.memory_per_rank = entries.front().peak;
    EXPECT_TRUE(plan_layers(*graph, cluster, options));
    for (Bytes below : {entries.front().peak - 1, entries.front().peak / 2}) {
      options.memory_per_rank = below;
      const Result<Plan> plan = plan_layers(*graph, cluster, options);
      ASSERT_FALSE(plan);
      const std::string need = " needs " + std::to_string(entries.front().peak) + " ";
      EXPECT_NE(to_string(plan.problems()).find(need), std::string::npos) << to_string(plan.problems());
    }
  }
}

}  // namespace
}  // namespace millrace
