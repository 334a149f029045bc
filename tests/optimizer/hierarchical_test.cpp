// The dynamic programme against every plan there is, on small graphs.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "optimizer/pipedream/antichain.h"
#include "optimizer/pipedream/pipedream_planner.h"
#include "tests/optimizer/pipedream_graphs.h"

namespace millrace {
namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();

int product(const std::vector<int>& machines) {
  int workers = 1;
  for (int m : machines) workers *= m;
  return workers;
}

// Every chain of cuts with every replication, priced by the evaluator (which knows nothing of the
// recurrence).
class Exhaustive {
 public:
  Exhaustive(const PipeDreamGraph& graph, const PipeDreamOptions& options)
      : graph_(graph), options_(options), states_(*enumerate_antichains(graph)) {}

  double least() {
    extend(-1, product(options_.machines));
    return least_;
  }

 private:
  void extend(int from, int workers) {
    if (from == states_.last()) {
      const Result<double> time = evaluate_pipedream(graph_, options_, stages_);
      if (time) least_ = std::min(least_, *time);
      return;
    }
    for (int to = from + 1; to < states_.size(); ++to) {
      if (from >= 0 && !states_.precedes(from, to)) continue;
      PipeDreamStage stage;
      for (int v : states_.nodes_between(from, to)) stage.nodes.push_back(graph_.nodes[v].id);
      for (int r = 1; r <= workers; ++r) {
        stage.replication = r;
        stages_.push_back(stage);
        extend(to, workers - r);
        stages_.pop_back();
      }
    }
  }

  const PipeDreamGraph& graph_;
  const PipeDreamOptions& options_;
  const AntichainStates states_;
  std::vector<PipeDreamStage> stages_;
  double least_ = kNone;
};

PipeDreamOptions random_options(RandomStream& random, bool two_levels) {
  PipeDreamOptions options;
  options.machines = {static_cast<int>(1 + random.below(two_levels ? 2 : 4))};
  options.bandwidths = {random.uniform(1e8, 1e9)};
  if (two_levels) {
    options.machines.push_back(2);
    options.bandwidths.push_back(random.uniform(2e7, 5e8));
  }
  options.straight = random.below(4) == 0;
  options.use_fewer_machines = random.below(3) == 0;
  if (random.below(2) == 0) options.activation_compression = random.uniform(0.5, 2);
  if (random.below(3) == 0) options.memory_bytes = random.uniform(5e6, 6e7);
  return options;
}

class RandomGraphs : public testing::TestWithParam<bool> {};

TEST_P(RandomGraphs, NoPlanIsBetterThanTheAnswer) {
  int answered = 0;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    RandomStream random(derive_seed(seed, "options"));
    const PipeDreamGraph graph = random_pipedream_graph(seed, static_cast<int>(2 + random.below(5)));
    const PipeDreamOptions options = random_options(random, GetParam());
    const double least = Exhaustive(graph, options).least();
    const Result<PipeDreamAnswer> answer = plan_pipedream(graph, options);
    ASSERT_EQ(answer.has_value(), least < kNone) << "seed " << seed;
    if (!answer) continue;
    ++answered;
    EXPECT_NEAR(answer->pipeline_time_s, least, 1e-12 * least) << "seed " << seed;
    const Result<double> again = evaluate_pipedream(graph, options, answer->stages);
    ASSERT_TRUE(again) << "seed " << seed << ": " << to_string(again.problems());
    EXPECT_NEAR(*again, least, 1e-12 * least) << "seed " << seed;
  }
  EXPECT_GT(answered, 80);
}
INSTANTIATE_TEST_SUITE_P(Levels, RandomGraphs, testing::Bool());

// The coarse pass that bounds the full one must not change the answer: large chains against the plain
// recurrence.
TEST(LargeChain, EqualsThePlainRecurrence) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    RandomStream random(derive_seed(seed, "chain"));
    std::vector<PipeDreamLayer> layers;
    std::vector<std::pair<int, int>> edges;
    constexpr int kLayers = 150;
    for (int v = 0; v < kLayers; ++v) {
      layers.push_back({"L", random.uniform(0, 9), random.uniform(0, 9), random.uniform(0, 1e6),
                        random.uniform(0, 1e7) * (v > kLayers / 2 ? 10 : 1)});
      if (v > 0) edges.push_back({v - 1, v});
    }
    constexpr int kMachines = 7;
    PipeDreamOptions options{.machines = {kMachines}, .bandwidths = {1e9}, .activation_compression = 1};
    std::vector<double> time{0}, weights{0};
    for (const PipeDreamLayer& l : layers) {
      time.push_back(time.back() + (l.forward_ms + l.backward_ms) / 1000);
      weights.push_back(weights.back() + l.parameters);
    }
    std::vector<std::vector<double>> best(kMachines + 1, std::vector<double>(kLayers + 1, kNone));
    for (int j = 1; j <= kLayers; ++j) {
      for (int m = 1; m <= kMachines; ++m) {
        best[m][j] = (time[j] + 4.0 * (m - 1) * weights[j] / (1e9 * m)) / m;
        for (int k = 1; k < j; ++k) {
          for (int last = 1; last < m; ++last) {
            double stage =
                (time[j] - time[k] + 4.0 * (last - 1) * (weights[j] - weights[k]) / (1e9 * last)) / last;
            stage = std::max(stage, 2 * layers[k - 1].activation / (1e9 * last));
            if (j < kLayers) stage = std::max(stage, 2 * layers[j - 1].activation / (1e9 * last));
            best[m][j] = std::min(best[m][j], std::max(best[m - last][k], stage));
          }
        }
      }
    }
    const Result<PipeDreamAnswer> answer = plan_pipedream(pipedream_graph(layers, edges), options);
    ASSERT_TRUE(answer);
    EXPECT_NEAR(answer->pipeline_time_s, best[kMachines][kLayers], 1e-12);
  }
}

TEST(Ties, PreferFewerStagesThenEarlierSplits) {
  // Free layers at the end: cutting behind any of them costs the same.
  const PipeDreamGraph chain = pipedream_graph(
      {{"L", 1, 1, 0, 0}, {"L", 0, 0, 0, 0}, {"L", 0, 0, 0, 0}, {"L", 1, 1, 0, 0}}, {{0, 1}, {1, 2}, {2, 3}});
  const Result<PipeDreamAnswer> two = plan_pipedream(chain, {.machines = {2}, .bandwidths = {1e9}});
  ASSERT_TRUE(two);
  EXPECT_EQ(two->stages.size(), 1u);  // no weights: replication is as good as a cut
  EXPECT_EQ(two->stages[0].replication, 2);
  const Result<PipeDreamAnswer> cut =
      plan_pipedream(chain, {.machines = {2}, .bandwidths = {1e9}, .straight = true});
  ASSERT_TRUE(cut);
  ASSERT_EQ(cut->stages.size(), 2u);
  EXPECT_EQ(cut->stages[0].nodes, std::vector<std::string>{"node1"});
}

TEST(Plan, InputsGoToTheFirstStageAndUnreadPartsNowhere) {
  const PipeDreamGraph graph = pipedream_graph({{"Input0", 1, 1, 1, 1},
                                                {"L", 1, 1, 1, 1},
                                                {"__getitem__(0)", 0, 0, 1, 0},
                                                {"L", 1, 1, 1, 1},
                                                {"Input1", 1, 1, 1, 1}},
                                               {{0, 1}, {1, 2}, {1, 3}, {4, 3}});
  const Result<PipeDreamAnswer> answer =
      plan_pipedream(graph, {.machines = {2}, .bandwidths = {1e9}, .straight = true});
  ASSERT_TRUE(answer);
  ASSERT_EQ(answer->stages.size(), 2u);
  EXPECT_EQ(answer->stages[0].nodes, (std::vector<std::string>{"node1", "node2", "node5"}));
  EXPECT_EQ(answer->stages[1].nodes, std::vector<std::string>{"node4"});
  EXPECT_DOUBLE_EQ(answer->single_machine_time_s, 0.004);
}

TEST(Options, WrongOnesAreNamed) {
  const PipeDreamGraph graph = random_pipedream_graph(1, 5);
  const PipeDreamOptions wrong[] = {{},
                                    {.machines = {2, 2}, .bandwidths = {1e9}},
                                    {.machines = {0}, .bandwidths = {1e9}},
                                    {.machines = {2}, .bandwidths = {0}},
                                    {.machines = {100000}, .bandwidths = {1e9}},
                                    {.machines = {2}, .bandwidths = {1e9}, .activation_compression = 0},
                                    {.machines = {64}, .bandwidths = {1e9}, .straight = true}};
  for (const PipeDreamOptions& options : wrong) {
    const Result<PipeDreamAnswer> answer = plan_pipedream(graph, options);
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.problems().front().where.rfind("--", 0), 0u) << to_string(answer.problems());
  }
}

TEST(Evaluate, RefusesStagesThatAreNoCuts) {
  const PipeDreamGraph graph =
      pipedream_graph({{"L", 1, 1, 1, 1}, {"L", 1, 1, 1, 1}, {"L", 1, 1, 1, 1}}, {{0, 1}, {1, 2}});
  const PipeDreamOptions options{.machines = {2}, .bandwidths = {1e9}};
  EXPECT_FALSE(evaluate_pipedream(graph, options, {{0, 1, {"node2"}}, {0, 1, {"node1", "node3"}}}));
  EXPECT_FALSE(evaluate_pipedream(graph, options, {{0, 1, {"node1"}}, {0, 1, {"node2"}}}));
  EXPECT_FALSE(evaluate_pipedream(graph, options, {{0, 2, {"node1"}}, {0, 1, {"node2", "node3"}}}));
  EXPECT_FALSE(evaluate_pipedream(graph, options, {{0, 1, {"node9"}}}));
  EXPECT_TRUE(evaluate_pipedream(graph, options, {{0, 1, {"node1"}}, {0, 1, {"node2", "node3"}}}));
}

}  // namespace
}  // namespace millrace
