// Work limits: the search over everything is no worse than a search by name, and says what it left out.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/optimizer/every_cut.h"

namespace millrace {
namespace {

TEST(WorkLimits, AutoIsNeverWorseThanASearchByName) {
  const char* folder = std::getenv("MILLRACE_DATA");
  if (folder == nullptr) GTEST_SKIP() << "MILLRACE_DATA is not set";
  int limited = 0;
  for (const char* name : {"gnmt_large", "gnmt", "vgg16", "resnet50"}) {
    const Result<LayerGraph> graph = recorded_profile(folder, name);
    ASSERT_TRUE(graph) << to_string(graph.problems());
    for (const double bandwidth : {1.25e8, 1.25e9}) {
      const ClusterSpec cluster = ranks(4, bandwidth);
      PlannerOptions options{.microbatches = 16};
      const Result<PlannerAnswer> all = explain_plan(*graph, cluster, options, Reasons::RunnerUp);
      ASSERT_TRUE(all);
      limited += !all->search.finished;
      for (const ScheduleKind kind : {ScheduleKind::OneFOneB, ScheduleKind::ZeroBubbleH1,
                                      ScheduleKind::ZeroBubbleH2, ScheduleKind::Interleaved}) {
        for (int stages = 2; stages <= 4; ++stages) {
          options.schedule = kind;
          options.stages = stages;
          const Result<Plan> named = plan_layers(*graph, cluster, options);
          if (!named) continue;  // interleaved has more stages than ranks
          EXPECT_LE(all->plan.predicted_step_s, named->predicted_step_s * (1 + 1e-9))
              << name << " " << to_string(kind) << " " << stages << " stages, " << bandwidth;
        }
      }
    }
  }
  EXPECT_GT(limited, 0);
}

ClusterSpec two_levels(int inside, int outside, ClusterLink in, ClusterLink out) {
  ClusterSpec cluster = ClusterSpec::local(1);
  cluster.levels = {{inside, in.bandwidth, in.latency_s}, {outside, out.bandwidth, out.latency_s}};
  cluster.hosts = {{"localhost", inside * outside}};
  return cluster;
}

TEST(WorkLimits, TheClimbAboveTenRanksHasWorkOfItsOwn) {
  const char* folder = std::getenv("MILLRACE_DATA");
  if (folder == nullptr) GTEST_SKIP() << "MILLRACE_DATA is not set";
  const Result<LayerGraph> graph = recorded_profile(folder, "alexnet");
  ASSERT_TRUE(graph) << to_string(graph.problems());
  const ClusterSpec cluster = two_levels(8, 2, {1e10, 1e-5}, {1.25e9, 5e-5});
  PlannerOptions options{.microbatches = 64};
  const Result<Plan> all = plan_layers(*graph, cluster, options);
  options.schedule = ScheduleKind::ZeroBubbleH2;
  options.stages = 2;
  const Result<Plan> named = plan_layers(*graph, cluster, options);
  ASSERT_TRUE(all && named);
  EXPECT_LE(all->predicted_step_s, named->predicted_step_s * (1 + 1e-9));
}

// Before bounds knew what crosses a cut this took a hundred times as long and found 868 ms.
TEST(WorkLimits, ALimitOfMemoryLeavesTimeForTheSearch) {
  const char* folder = std::getenv("MILLRACE_DATA");
  if (folder == nullptr) GTEST_SKIP() << "MILLRACE_DATA is not set";
  const Result<LayerGraph> graph = recorded_profile(folder, "resnet50");
  ASSERT_TRUE(graph) << to_string(graph.problems());
  const ClusterSpec cluster = two_levels(8, 4, {1.5e11, 5e-6}, {1.25e10, 1e-5});
  for (const double effort : {0.1, 1.0}) {
    PlannerOptions options{.microbatches = 32, .memory_per_rank = 16LL << 30};
    options.effort = effort;
    double last = 0;
    options.progress = [&](std::string_view what, double part) {
      EXPECT_EQ(what, "plan");
      EXPECT_GE(part, last);
      EXPECT_LE(part, 1);
      last = part;
    };
    const Result<Plan> plan = plan_layers(*graph, cluster, options);
    ASSERT_TRUE(plan) << to_string(plan.problems());
    EXPECT_LT(plan->predicted_step_s, 0.78) << effort;
    EXPECT_GT(last, 0.5);
  }
}

LayerGraph long_chain(std::uint64_t seed, int layers) {
  RandomStream random(seed);
  LayerGraph graph = random_layers(random, layers);
  for (int i = 1; i < layers; ++i) join(graph, i - 1, i);
  return graph;
}

TEST(WorkLimits, MoreEffortFindsNoWorsePlans) {
  const LayerGraph graph = long_chain(5, 120);
  const ClusterSpec cluster = ranks(6, 2e8);
  double before = kNoPlan;
  for (double effort : {0.01, 1.0, 4.0}) {
    PlannerOptions options{.microbatches = 12, .chunks = 1};
    options.effort = effort;
    const Result<PlannerAnswer> answer = explain_plan(graph, cluster, options, Reasons::RunnerUp);
    ASSERT_TRUE(answer);
    EXPECT_LE(answer->plan.predicted_step_s, before * (1 + 1e-9)) << effort;
    if (effort < 1) {
      EXPECT_FALSE(answer->search.finished);
    }
    before = answer->plan.predicted_step_s;
  }
}

TEST(WorkLimits, DataParallelismIsTriedWhateverAStepHolds) {
  LayerGraph graph = long_chain(6, 8);
  for (LayerNode& node : graph.nodes) node.parameter_bytes = 1000;
  const ClusterSpec cluster = ranks(4, 1e7);  // transfers cost more than the all-reduce
  const Result<PlannerAnswer> answer =
      explain_plan(graph, cluster, {.microbatches = 100'000}, Reasons::RunnerUp);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->plan.num_stages(), 1);
}

TEST(SharedPorts, MessagesOfAHostGoOneAtATime) {
  // Four stages of two replicas on two hosts of four, so that the border between stage 1 and 2 is one port.
  LayerGraph graph = long_chain(7, 4);
  for (LayerNode& node : graph.nodes) node.parameter_bytes = 0;
  ClusterSpec cluster = ClusterSpec::local(1);
  cluster.levels = {{4, 1e12, 0}, {2, 1e8, 0}};
  cluster.hosts = {{"localhost", 8}};
  std::vector<std::string> layers;
  for (const LayerNode& node : graph.nodes) layers.push_back(node.name);
  const Plan plan = uniform_plan("dag", layers, 2, 4, 16, ScheduleKind::OneFOneB);
  const double bytes = static_cast<double>(graph.nodes[1].activation_bytes);
  const double all_messages = 16 * bytes / 1e8;
  EXPECT_GE(predict(plan, graph, cluster).predicted_step_s, all_messages);
  ClusterSpec wires = cluster;
  wires.levels = {{8, 1e8, 0}};
  EXPECT_LT(predict(plan, graph, wires).predicted_step_s, predict(plan, graph, cluster).predicted_step_s);
  EXPECT_EQ(ports_of(cluster), (std::vector<int>{0, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_TRUE(ports_of(wires).empty());
}

TEST(SharedPorts, AllReducesOfAHostShareIt) {
  ClusterSpec cluster = ClusterSpec::local(1);
  cluster.levels = {{4, 1e12, 0}, {2, 1e8, 0}};
  cluster.hosts = {{"localhost", 8}};
  const auto of = [&](std::vector<std::vector<int>> stages) {
    std::vector<std::vector<RankId>> ranks;
    for (const auto& stage : stages) {
      ranks.emplace_back();
      for (int r : stage) ranks.back().push_back(RankId(r));
    }
    return all_reduce_costs(cluster, ports_of(cluster), ranks);
  };
  const auto alone = of({{0, 4}, {1, 2, 3}, {5, 6, 7}});
  const auto shared = of({{0, 4}, {1, 5}, {2, 6}, {3, 7}});
  EXPECT_DOUBLE_EQ(alone[0].seconds(1'000'000), 0.01);
  for (const AllReduceCost& cost : shared) EXPECT_DOUBLE_EQ(cost.seconds(1'000'000), 4 * 0.01);
  // Eight ranks on two hosts: 16 pieces of 64 KiB and the way back of the last, whatever the ranks of a host.
  EXPECT_NEAR(of({{0, 1, 2, 3, 4, 5, 6, 7}})[0].seconds(4 * kMiB), 9.0 / 8 * 4 * kMiB / 1e8, 1e-4);
}

TEST(AllReduceOverlap, SplitBackwardsReduceInTheirLastWeightPass) {
  LayerGraph graph = long_chain(8, 6);
  for (LayerNode& node : graph.nodes) node.parameter_bytes = 8 * kMiB;  // two buckets
  const ClusterSpec cluster = ranks(4, 1e9);
  const CostModel model(graph, cluster);
  std::vector<CutStage> stages(1);
  for (int i = 0; i < 6; ++i) stages[0].nodes.push_back(i);
  for (int r = 0; r < 4; ++r) stages[0].ranks.push_back(RankId(r));
  const PipelineShape shape = model.shape_of(stages, 8);
  const double whole = model.costs_of(stages, shape, ScheduleKind::OneFOneB).reduce[0];
  const double split = model.costs_of(stages, shape, ScheduleKind::ZeroBubbleH1).reduce[0];
  // The wire is busy from the last layer's gradients on: what is not hidden any more are the other layers'
  // input gradients.
  double inputs = 0;
  for (int i = 0; i < 5; ++i) inputs += graph.nodes[i].backward_input_s;
  EXPECT_NEAR(split, whole + inputs, 1e-12);
}

}  // namespace
}  // namespace millrace
