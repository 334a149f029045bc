// The complete sweeps of tests/optimizer/dag_plans_test.cpp: the answer against every antichain cut.
#include <gtest/gtest.h>

#include "optimizer/planner/planner.h"
#include "tests/optimizer/every_cut.h"

namespace millrace {
namespace {

const std::vector<ScheduleKind> kKinds = schedule_kinds([](const ScheduleTraits& row) {
  return row.order == OrderSource::Rule && !is_asynchronous(row.kind) && !needs_chunks(row.kind);
});

TEST(EveryGraph, UpToFiveLayersOnTwoToFourRanks) {
  int graphs = 0;
  for (int layers = 2; layers <= 5; ++layers) {
    const std::uint64_t count = std::uint64_t{1} << (layers * (layers - 1) / 2);
    for (std::uint64_t bits = 0; bits < count; ++bits) {
      for (int devices = 2; devices <= 4; ++devices) {
        RandomStream random(
            derive_seed(bits, "every graph", static_cast<std::uint64_t>(10 * layers + devices)));
        const LayerGraph graph = graph_of_bits(random, layers, bits);
        const PlannerOptions options{.microbatches = static_cast<int>(2 + bits % 5)};
        const ClusterSpec cluster = ranks(devices, bits % 2 == 0 ? 1e9 : 2e8);
        const Result<PlannerAnswer> answer = explain_plan(graph, cluster, options);
        ASSERT_TRUE(answer) << to_string(answer.problems());
        EXPECT_TRUE(answer->search.every_cut && answer->search.finished);
        expect_best(answer->plan, EveryCut(graph, cluster, options).least(),
                    std::to_string(layers) + " layers, graph " + std::to_string(bits));
      }
      ++graphs;
    }
  }
  EXPECT_EQ(graphs, 2 + 8 + 64 + 1024);
}

TEST(ThousandsOfGraphs, SixAndSevenLayers) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    RandomStream random(derive_seed(seed, "thousands"));
    const int layers = static_cast<int>(6 + seed % 2);
    const LayerGraph graph = seed % 3 == 0 ? series_parallel_graph(random, layers)
                                           : graph_of_bits(random, layers, random.below(1u << 21));
    const PlannerOptions options{
        .microbatches = static_cast<int>(3 + seed % 6), .schedule = kKinds[seed % 4], .chunks = 1};
    const ClusterSpec cluster = ranks(seed % 5 == 0 ? 2 : 3, random.uniform(1e8, 1e10));
    const Result<PlannerAnswer> answer = explain_plan(graph, cluster, options);
    ASSERT_TRUE(answer) << to_string(answer.problems());
    EXPECT_TRUE(answer->search.every_cut && answer->search.finished) << "seed " << seed;
    expect_best(answer->plan, EveryCut(graph, cluster, options).least(), "seed " + std::to_string(seed));
  }
}

// The mode for wide graphs, as if these were: prefixes of a few orders, then single layers moved.
TEST(ThousandsOfGraphs, PrefixesOfOrdersStayNear) {
  double worst = 1;
  double sum = 0;
  int exact = 0;
  constexpr int kGraphs = 4000;
  for (std::uint64_t seed = 0; seed < kGraphs; ++seed) {
    RandomStream random(derive_seed(seed, "orders against all"));
    const LayerGraph graph =
        graph_of_bits(random, 9, random.next() & random.next());  // a quarter of the pairs
    PlannerOptions options{.microbatches = 4, .schedule = kKinds[seed % 4], .chunks = 1};
    const ClusterSpec cluster = ranks(static_cast<int>(2 + seed % 3));
    const Result<Plan> best = plan_layers(graph, cluster, options);
    options.most_states = 0;
    const Result<Plan> orders = plan_layers(graph, cluster, options);
    ASSERT_TRUE(best && orders);
    const double gap = orders->predicted_step_s / best->predicted_step_s;
    EXPECT_GE(gap, 1 - 1e-9) << "seed " << seed;
    exact += gap < 1 + 1e-9;
    worst = std::max(worst, gap);
    sum += gap;
  }
  std::printf("prefixes of orders against every cut: equal in %d of %d, mean %.4f, worst %.3f\n", exact,
              kGraphs, sum / kGraphs, worst);
  EXPECT_LT(worst, 2);
  EXPECT_LT(sum / kGraphs, 1.03);
}

}  // namespace
}  // namespace millrace
