// Our planner on graphs that are not chains, against every antichain cut.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <set>

#include "optimizer/cost/cost_model.h"
#include "optimizer/planner/cut_space.h"
#include "optimizer/planner/layouts.h"
#include "optimizer/planner/planner.h"
#include "runtime/base/json.h"
#include "runtime/base/random.h"
#include "tests/optimizer/every_cut.h"

namespace millrace {
namespace {

// All graphs over up to four layers (75 of them), one in seven over five (1,024 / 7).
TEST(EverySmallGraph, AnswerEqualsTheBestOfAllAntichainCuts) {
  int graphs = 0;
  int others = 0;
  for (int layers = 2; layers <= 5; ++layers) {
    const std::uint64_t count = std::uint64_t{1} << (layers * (layers - 1) / 2);
    for (std::uint64_t bits = 0; bits < count; bits += layers < 5 ? 1 : 7) {
      RandomStream random(derive_seed(bits, "small graphs", static_cast<std::uint64_t>(layers)));
      const LayerGraph graph = graph_of_bits(random, layers, bits);
      const PlannerOptions options{.microbatches = static_cast<int>(2 + bits % 3)};
      const ClusterSpec cluster = ranks(bits % 2 == 0 ? 2 : 3);
      const double least = EveryCut(graph, cluster, options).least();
      const Result<PlannerAnswer> answer = explain_plan(graph, cluster, options);
      ASSERT_TRUE(answer) << to_string(answer.problems());
      expect_best(answer->plan, least, std::to_string(layers) + " layers, graph " + std::to_string(bits));
      others += !is_plain(answer->plan);
      EXPECT_TRUE(answer->search.every_cut && answer->search.finished);
      EXPECT_LE(answer->search.floor_s, answer->plan.predicted_step_s * (1 + 1e-9));
      ++graphs;
    }
  }
  EXPECT_EQ(graphs, 2 + 8 + 64 + 147);
  EXPECT_LT(others, graphs / 2);  // better still: several stages per rank, or actions ordered by their costs
}

TEST(RandomDags, MemoryLimitsAndMixedDevicesAreExactToo) {
  int answered = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    RandomStream random(derive_seed(seed, "dags"));
    const LayerGraph graph = graph_of_bits(random, 5, random.below(1024));
    const ClusterSpec cluster = seed % 2 == 0 ? mixed_cluster() : ranks(3);
    PlannerOptions options{.microbatches = 4};
    if (seed % 3 == 0) options.memory_per_rank = static_cast<Bytes>(8'000'000 + random.below(20'000'000));
    if (seed % 3 != 0 && seed % 2 == 0) options.memory_per_rank = 100'000'000;  // also in the kinds' place
    const double least = EveryCut(graph, cluster, options).least();
    const Result<Plan> plan = plan_layers(graph, cluster, options);
    ASSERT_TRUE(plan || least == kNoPlan) << "seed " << seed;
    if (!plan) continue;
    ++answered;
    expect_best(*plan, least, "seed " + std::to_string(seed));
  }
  EXPECT_GT(answered, 45);
}

TEST(SeriesParallel, AnswerEqualsTheBestOfAllAntichainCuts) {
  for (std::uint64_t seed = 0; seed < 25; ++seed) {
    RandomStream random(derive_seed(seed, "series parallel"));
    const LayerGraph graph = series_parallel_graph(random, static_cast<int>(5 + seed % 3));
    const ScheduleKind kinds[] = {ScheduleKind::OneFOneB, ScheduleKind::GPipe, ScheduleKind::ZeroBubbleH1};
    const PlannerOptions options{.microbatches = 4, .schedule = kinds[seed % 3], .chunks = 1};
    const ClusterSpec cluster = ranks(3);
    const Result<Plan> plan = plan_layers(graph, cluster, options);
    ASSERT_TRUE(plan);
    expect_best(*plan, EveryCut(graph, cluster, options).least(), "seed " + std::to_string(seed));
  }
}

// Compares prefixes of a few orders with all antichain cuts by their simulated steps. For the bottleneck of
// compute a factor of at most 2 is proved (docs/planning.md).
TEST(RandomDags, PrefixesOfOrdersStayNearEveryCut) {
  double worst = 1;
  double sum = 0;
  constexpr int kGraphs = 1500;
  for (std::uint64_t seed = 0; seed < kGraphs; ++seed) {
    RandomStream random(derive_seed(seed, "gap"));
    const LayerGraph graph = graph_of_bits(random, 7, random.below(1u << 21));
    const ScheduleKind kinds[] = {ScheduleKind::OneFOneB, ScheduleKind::GPipe, ScheduleKind::ZeroBubbleH1};
    PlannerOptions options{.microbatches = 4, .schedule = kinds[seed % 3], .chunks = 1};
    const ClusterSpec cluster = ranks(3);
    const Result<Plan> exact = plan_layers(graph, cluster, options);
    options.most_states = 0;
    const Result<Plan> orders = plan_layers(graph, cluster, options);
    ASSERT_TRUE(exact && orders);
    const double gap = orders->predicted_step_s / exact->predicted_step_s;
    EXPECT_GE(gap, 1 - 1e-9) << "seed " << seed;
    worst = std::max(worst, gap);
    sum += gap;
  }
  std::printf("prefixes of orders against every cut: worst %.4f, mean %.5f\n", worst, sum / kGraphs);
  EXPECT_LT(worst, 1.4);
  EXPECT_LT(sum / kGraphs, 1.01);
}

TEST(TopologicalOrders, AreOrdersAndAChainHasOne) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    RandomStream random(derive_seed(seed, "orders"));
    const LayerGraph graph = graph_of_bits(random, 7, random.below(1u << 21));
    for (const std::vector<int>& order : topological_orders(graph)) {
      ASSERT_EQ(std::set<int>(order.begin(), order.end()).size(), 7u);
      for (const LayerEdge& e : graph.edges) {
        EXPECT_LT(std::find(order.begin(), order.end(), e.producer),
                  std::find(order.begin(), order.end(), e.consumer));
      }
    }
  }
  RandomStream random(1);
  LayerGraph chain = random_layers(random, 6);
  for (int i = 0; i < 5; ++i) join(chain, i, i + 1);
  EXPECT_EQ(topological_orders(chain).size(), 1u);
}

TEST(CutSpace, CompleteHoldsEveryClosedSet) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    RandomStream random(derive_seed(seed, "closed sets"));
    const LayerGraph graph = graph_of_bits(random, 6, random.below(1u << 15));
    const ClusterSpec cluster = ranks(2);
    const CostModel model(graph, cluster);
    const auto space = CutSpace::complete(model, topological_orders(graph).front(), 100);
    ASSERT_TRUE(space);
    EXPECT_EQ(space->states(), static_cast<int>(closed_sets(graph).size()));
    EXPECT_EQ(space->layers(0, space->last()).size(), 6u);
    for (int a = 0; a < space->states(); ++a) {
      for (int b = a + 1; b < space->states(); ++b) {
        EXPECT_TRUE(!space->nested(a, b) || !space->layers(a, b).empty());
      }
    }
  }
}

}  // namespace
}  // namespace millrace
