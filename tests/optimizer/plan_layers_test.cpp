// Our planner against every contiguous cut with every replication, scored by the same simulator.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "optimizer/cost/cost_model.h"
#include "optimizer/planner/layouts.h"
#include "optimizer/planner/planner.h"
#include "runtime/base/random.h"
#include "runtime/plan/spread_tables.h"
#include "tests/optimizer/random_layers.h"

namespace millrace {
namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();

// A chain; with `skips`, some layers also read an earlier one.
enum class Skips { No, Some };
LayerGraph random_chain(RandomStream& random, int layers, Skips skips = Skips::No) {
  LayerGraph graph = random_layers(random, layers);
  for (int i = 1; i < layers; ++i)
    graph.edges.push_back({i - 1, i, "t" + std::to_string(i), graph.nodes[i - 1].activation_bytes});
  for (int i = 2; skips == Skips::Some && i < layers; ++i) {
    if (random.below(3) != 0) continue;
    const int from = static_cast<int>(random.below(static_cast<std::uint64_t>(i - 1)));
    graph.edges.push_back({from, i, "t" + std::to_string(from + 1), graph.nodes[from].activation_bytes});
  }
  return graph;
}

ClusterSpec cluster_of(std::vector<ClusterLevel> levels) {
  ClusterSpec cluster = ClusterSpec::local(1);
  cluster.levels = std::move(levels);
  cluster.hosts = {{"localhost", cluster.num_ranks()}};
  return cluster;
}

// Every plan of contiguous stages in file order; the least predicted time of a microbatch.
class Exhaustive {
 public:
  Exhaustive(const LayerGraph& graph, const ClusterSpec& cluster, const PlannerOptions& options)
      : graph_(graph), cluster_(cluster), options_(options) {}

  double least() {
    for (ScheduleKind kind :
         {ScheduleKind::GPipe, ScheduleKind::OneFOneB, ScheduleKind::ZeroBubbleH1, ScheduleKind::ZeroBubbleH2,
          ScheduleKind::PipeDream, ScheduleKind::PipeDreamVSync}) {
      if (options_.schedule ? *options_.schedule != kind : is_asynchronous(kind)) continue;
      for (int m = options_.microbatches > 0 ? options_.microbatches : 1;
           m <= (options_.microbatches > 0 ? options_.microbatches : 4 * cluster_.num_ranks()); m *= 2) {
        for (const std::vector<RankId>& devices : device_orders(cluster_)) {
          devices_ = devices;
          plan_ = {.model = graph_.model, .schedule = kind, .microbatches = m};
          extend(0, 0);
        }
      }
    }
    return least_;
  }

 private:
  void extend(int layer, int rank) {
    const int layers = static_cast<int>(graph_.nodes.size());
    if (layer == layers && rank == cluster_.num_ranks()) score();
    if (layer == layers || rank == cluster_.num_ranks()) return;
    for (int end = layer + 1; end <= layers; ++end) {
      for (int r = 1; rank + r <= (options_.straight ? rank + 1 : cluster_.num_ranks()); ++r) {
        PlanStage stage;
        for (int i = layer; i < end; ++i) stage.layers.push_back(graph_.nodes[i].name);
        for (int i = 0; i < r; ++i) stage.ranks.push_back(devices_[rank + i]);
        plan_.stages.push_back(stage);
        extend(end, rank + r);
        plan_.stages.pop_back();
      }
    }
  }

  void score() {
    if (options_.stages > 0 && plan_.num_stages() != options_.stages) return;
    if (!validate(plan_, graph_).empty()) return;  // more replicas than microbatches
    if (plan_.schedule == ScheduleKind::PipeDreamVSync &&
        std::any_of(plan_.stages.begin(), plan_.stages.end(), [&](const PlanStage& stage) {
          return stage.ranks.size() != plan_.stages.front().ranks.size();
        }))
      return;
    Plan plan = plan_;
    for (PlanStage& stage : plan.stages) stage.recompute = options_.recompute == Recompute::Always;
    const Plan predicted = predict(plan, graph_, cluster_, options_.costs);
    const Bytes limit = options_.memory_per_rank > 0 ? options_.memory_per_rank : cluster_.memory_per_rank;
    for (const PlanStage& stage : predicted.stages) {
      if (limit > 0 && stage.peak_bytes > limit) return;
    }
    least_ = std::min(least_, predicted.predicted_step_s / plan_.microbatches);
  }

  const LayerGraph& graph_;
  const ClusterSpec& cluster_;
  const PlannerOptions& options_;
  Plan plan_;
  std::vector<RankId> devices_;
  double least_ = kNone;
};

PlannerOptions random_options(RandomStream& random, int layers, int ranks) {
  PlannerOptions options;
  options.microbatches = static_cast<int>(random.below(9));
  if (random.below(4) == 0) options.stages = static_cast<int>(1 + random.below(std::min(layers, ranks)));
  if (random.below(5) == 0 && options.stages == 0 && ranks <= layers) options.straight = true;
  if (random.below(3) == 0)
    options.memory_per_rank = static_cast<Bytes>(8'000'000 + random.below(30'000'000));
  if (random.below(4) == 0) options.recompute = Recompute::Always;
  if (random.below(2) == 0) options.costs.reduce = ReduceModel::Serial;
  options.costs.rule_copies = static_cast<int>(random.below(3));
  options.costs.share_rule_state = random.below(2) == 1;
  const ScheduleKind kinds[] = {ScheduleKind::GPipe,        ScheduleKind::OneFOneB,
                                ScheduleKind::PipeDream,    ScheduleKind::ZeroBubbleH1,
                                ScheduleKind::ZeroBubbleH2, ScheduleKind::PipeDreamVSync};
  if (const std::uint64_t kind = random.below(8); kind < 6) options.schedule = kinds[kind];
  options.chunks = options.schedule ? 1 : static_cast<int>(random.below(2));
  return options;
}

/// Schedules whose every cut is searched.
bool is_exact(ScheduleKind kind) {
  return !allows_chunks(kind) || kind == ScheduleKind::ZeroBubbleH1;
}

int stages_per_rank(const Plan& plan) {
  std::size_t places = 0;
  for (const PlanStage& stage : plan.stages) places += stage.ranks.size();
  return static_cast<int>(places) / plan.num_ranks();
}

ClusterSpec random_cluster(RandomStream& random) {
  std::vector<ClusterLevel> levels{{static_cast<int>(1 + random.below(3)), random.uniform(1e8, 1e10), 1e-5}};
  if (random.below(3) == 0) levels.push_back({2, random.uniform(1e7, 1e9), random.uniform(0, 1e-3)});
  return cluster_of(levels);
}

TEST(PlanLayers, NoContiguousPlanIsBetter) {
  int answered = 0;
  int exact = 0;
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    RandomStream random(derive_seed(seed, "plan_layers"));
    const Skips skips = seed % 2 == 0 ? Skips::No : Skips::Some;
    const LayerGraph graph = random_chain(random, static_cast<int>(2 + random.below(5)), skips);
    const ClusterSpec cluster = random_cluster(random);
    const PlannerOptions options =
        random_options(random, static_cast<int>(graph.nodes.size()), cluster.num_ranks());
    const double least = Exhaustive(graph, cluster, options).least();
    const Result<Plan> plan = plan_layers(graph, cluster, options);
    ASSERT_TRUE(plan || least == kNone) << "seed " << seed << (plan ? "" : to_string(plan.problems()));
    if (!plan) continue;
    ++answered;
    const double found = plan->predicted_step_s / plan->microbatches;
    EXPECT_LE(found, least * (1 + 1e-9)) << "seed " << seed;
    if (is_exact(plan->schedule) && stages_per_rank(*plan) == 1) {
      EXPECT_GE(found, least * (1 - 1e-9)) << "seed " << seed;
    }
    exact += is_exact(plan->schedule);
    EXPECT_TRUE(validate(*plan, graph).empty()) << to_string(validate(*plan, graph));
    EXPECT_EQ(plan->num_ranks(), cluster.num_ranks());
    EXPECT_EQ(plan->to_json(), plan_layers(graph, cluster, options)->to_json());
  }
  EXPECT_GT(answered, 70);
  EXPECT_GT(exact, 60);
}

TEST(PlanLayers, LongChainIsAtLeastAsGoodAsEveryBalancedOne) {
  RandomStream random(3);
  const LayerGraph graph = random_chain(random, 60);
  const ClusterSpec cluster = cluster_of({{4, 5e9, 2e-5}});
  const PlannerOptions options{.microbatches = 8, .straight = true};
  const Result<Plan> plan = plan_layers(graph, cluster, options);
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->num_stages(), 4);
  const std::vector<int> cuts{static_cast<int>(plan->stages[0].layers.size()),
                              static_cast<int>(plan->stages[1].layers.size()),
                              static_cast<int>(plan->stages[2].layers.size())};
  // No single boundary can be moved with a gain.
  for (int boundary = 0; boundary < 3; ++boundary) {
    for (int move : {-2, -1, 1, 2}) {
      Plan other = *plan;
      std::vector<std::string> layers;
      for (const PlanStage& stage : plan->stages) {
        layers.insert(layers.end(), stage.layers.begin(), stage.layers.end());
      }
      int at = 0;
      for (int s = 0; s < 4; ++s) {
        int count = s < 3 ? cuts[s] : static_cast<int>(layers.size()) - at;
        if (s == boundary) count += move;
        if (s == boundary + 1 && s < 3) count -= move;
        count = std::clamp(count, 1, static_cast<int>(layers.size()) - at - (3 - s));
        other.stages[s].layers.assign(layers.begin() + at, layers.begin() + at + count);
        at += count;
      }
      EXPECT_GE(predict(other, graph, cluster).predicted_step_s, plan->predicted_step_s * (1 - 1e-9));
    }
  }
}

// a -> b -> c -> d with a also read by d.
LayerGraph skip_graph() {
  LayerGraph graph;
  graph.model = "skip";
  for (const char* name : {"a", "b", "c", "d"}) {
    graph.nodes.push_back({.name = name,
                           .kind = "conv2d",
                           .forward_s = 0.001,
                           .backward_input_s = 0.001,
                           .backward_weight_s = 0.001,
                           .parameter_bytes = 1000,
                           .activation_bytes = 400,
                           .saved_bytes = 800});
  }
  graph.edges = {{0, 1, "ta", 400}, {1, 2, "tb", 300}, {2, 3, "tc", 200}, {0, 3, "ta", 400}};
  return graph;
}

TEST(Predict, SkipTensorsCrossToEveryStageThatReadsThem) {
  const LayerGraph graph = skip_graph();
  const Plan plan = predict(uniform_plan("skip", {"a", "b", "c", "d"}, 4, 1, 4, ScheduleKind::OneFOneB),
                            graph, cluster_of({{4, 1e9, 0}}));
  std::vector<std::tuple<int, int, Bytes>> crossings;
  for (const PlanCrossing& c : plan.crossings) crossings.emplace_back(c.from.value, c.to.value, c.bytes);
  std::sort(crossings.begin(), crossings.end());
  EXPECT_EQ(crossings,
            (std::vector<std::tuple<int, int, Bytes>>{{0, 1, 400}, {0, 3, 400}, {1, 2, 300}, {2, 3, 200}}));
}

TEST(Predict, MemoryIsWeightsGradientsMomentumAndStash) {
  LayerGraph graph = skip_graph();
  graph.edges.pop_back();
  const ClusterSpec cluster = cluster_of({{2, 1e12, 0}});
  const std::vector<std::string> layers{"a", "b", "c", "d"};
  Plan plan = uniform_plan("skip", layers, 2, 1, 4, ScheduleKind::OneFOneB);
  Plan flush = predict(plan, graph, cluster);
  EXPECT_EQ(flush.stages[0].parameter_bytes, 2000);
  // Two microbatches in flight. A tensor of 300 bytes is sent, and three more are waited for.
  EXPECT_EQ(flush.stages[0].peak_bytes, 2000 * 3 + 1600 * 2 + (1 + 3) * 300);
  EXPECT_EQ(flush.stages[1].peak_bytes,
            2000 * 3 + 1600 + 300 + (1 + 3) * 300);  // the received tensor is stashed too
  plan.schedule = ScheduleKind::GPipe;
  EXPECT_EQ(predict(plan, graph, cluster).stages[1].peak_bytes, 2000 * 3 + (1600 + 300) * 4 + 300);
  plan.schedule = ScheduleKind::PipeDream;
  EXPECT_EQ(predict(plan, graph, cluster).stages[0].peak_bytes,
            2000 * 4 + 1600 * 2 + (1 + 4) * 300);  // two weight versions
  const CostOptions adam{.rule_copies = 2};
  EXPECT_EQ(predict(plan, graph, cluster, adam).stages[0].peak_bytes, 2000 * 5 + 1600 * 2 + (1 + 4) * 300);
  // Copies of weights in a lower precision: one with each version.
  for (LayerNode& node : graph.nodes) node.lowered_bytes = 500;
  EXPECT_EQ(predict(plan, graph, cluster).stages[0].peak_bytes,
            2000 * 4 + 1000 * 2 + 1600 * 2 + (1 + 4) * 300);
  plan.schedule = ScheduleKind::OneFOneB;
  EXPECT_EQ(predict(plan, graph, cluster).stages[0].peak_bytes, 2000 * 3 + 1000 + 1600 * 2 + (1 + 3) * 300);
}

TEST(Predict, OneRankTakesTheSumOfItsLayers) {
  LayerGraph graph = skip_graph();
  graph.loss_s = 0.0005;
  graph.update_s_per_byte = 1e-7;
  const Plan plan = predict(uniform_plan("skip", {"a", "b", "c", "d"}, 1, 1, 3, ScheduleKind::OneFOneB),
                            graph, ClusterSpec::local(1));
  EXPECT_NEAR(plan.predicted_step_s, 3 * (0.012 + 0.0005) + 4000 * 1e-7, 1e-12);
  EXPECT_EQ(plan.graph_fingerprint, graph.fingerprint());
}

TEST(Predict, StagesSeeLengthsOfTheirOwn) {
  LayerGraph graph{.model = "m", .dimensions = {"source", "target"}};
  graph.nodes = {{.name = "encoder", .forward_s = 2}, {.name = "decoder", .forward_s = 2}};
  graph.edges = {{0, 1, "t", 0}};
  graph.microbatches = {{{10, 30}, 4}, {{30, 10}, 4}};  // together both take the same
  const Plan plan = uniform_plan("m", {"encoder", "decoder"}, 2, 1, 2, ScheduleKind::OneFOneB);
  const ClusterSpec cluster = ClusterSpec::local(2);
  EXPECT_NEAR(predict(plan, graph, cluster).predicted_step_s, 6, 1e-3);
  graph.nodes[0].of_microbatches = {{1, 0, 0}, {3, 0, 0}};
  graph.nodes[1].of_microbatches = {{3, 0, 0}, {1, 0, 0}};
  EXPECT_NEAR(predict(plan, graph, cluster).predicted_step_s, 5, 1e-3);
  for (LayerNode& node : graph.nodes) std::swap(node.of_microbatches[0], node.of_microbatches[1]);
  const Plan predicted = predict(plan, graph, cluster);
  EXPECT_NEAR(predicted.predicted_step_s, 7, 1e-3);
  EXPECT_EQ(predicted.planned_for.lengths, graph.length_ranges());
  // A kind of device that is twice as slow, by its own profile.
  const Result<ClusterSpec> slow = ClusterSpec::parse(
      "kinds: [{name: slow, speed: 1}]\nlevels: [{count: 2, bandwidth: 1e12}]\n"
      "hosts: [{name: a, devices: 2, kind: slow}]\n",
      "c");
  ASSERT_TRUE(slow) << to_string(slow.problems());
  LayerGraph twice = graph;
  for (LayerNode& node : twice.nodes) {
    node.forward_s *= 2;
    for (LayerSeconds& one : node.of_microbatches) one.forward *= 2;
  }
  EXPECT_NEAR(predict(plan, graph, *slow, {.profiles = {{"slow", twice}}}).predicted_step_s, 14, 1e-3);
}

TEST(Predict, ClippingByTheNormIsAPassAndAWaitOfAllRanks) {
  LayerGraph graph = skip_graph();
  graph.update_s_per_byte = 1e-7;
  graph.norm_s_per_byte = 5e-8;
  const auto step = [&](const Plan& plan, bool clips) {
    return predict(plan, graph, ClusterSpec::local(plan.num_ranks()), {.clips_norm = clips}).predicted_step_s;
  };
  const Plan one = uniform_plan("skip", {"a", "b", "c", "d"}, 1, 1, 3, ScheduleKind::OneFOneB);
  EXPECT_NEAR(step(one, true) - step(one, false), 4000 * 5e-8, 1e-12);
  Plan two = uniform_plan("skip", {"a", "b", "c", "d"}, 2, 1, 3, ScheduleKind::OneFOneB);
  const ClusterSpec cluster = ClusterSpec::local(2);
  const double agreement =
      all_reduce_seconds(cluster, {RankId(0), RankId(1)}, 16 * 4);  // four layers with weights
  EXPECT_GT(agreement, 0);
  EXPECT_NEAR(step(two, true) - step(two, false), 2000 * 5e-8 + agreement, 1e-12);
  CostModel model(graph, cluster, {.clips_norm = true});
  const Result<StepEstimate> estimate = model.estimate(two.schedule, 3, model.stages_of(two));
  ASSERT_TRUE(estimate);
  EXPECT_NEAR(estimate->update_s[0], 2000 * 1.5e-7, 1e-12);
  // Without a flush each stage has a norm of its own, and nobody waits.
  two.schedule = ScheduleKind::PipeDream;
  EXPECT_GT(step(two, true), step(two, false));
  EXPECT_LE(step(two, true) - step(two, false), 3 * 2000 * 5e-8 + 1e-12);
}

TEST(Predict, ReplicasExchangeTheSumsOfBatchNormalisation) {
  LayerGraph graph = skip_graph();
  graph.nodes[1].kind = "batch_norm2d";
  const ClusterSpec cluster = cluster_of({{2, 1e6, 1e-4}});
  const auto stage = [&](int replicas, bool together) {
    graph.sync_batch_norm = together;
    return predict(uniform_plan("skip", {"a", "b", "c", "d"}, 1, replicas, 4, ScheduleKind::OneFOneB), graph,
                   cluster)
        .stages[0];
  };
  const auto exchange = [&](Bytes bytes) {
    return all_reduce_seconds(cluster, {RankId(0), RankId(1)}, bytes);
  };
  const Bytes weights = graph.nodes[1].parameter_bytes;
  EXPECT_NEAR(stage(2, true).forward_s - stage(2, false).forward_s, exchange(2 * weights + 8), 1e-12);
  EXPECT_NEAR(stage(2, true).backward_s - stage(2, false).backward_s, exchange(2 * weights), 1e-12);
  EXPECT_DOUBLE_EQ(stage(1, true).forward_s, stage(1, false).forward_s);
}

/// Behind a stage on one rank replicas get their microbatches one after the other, and the first waits.
TEST(Predict, ReplicasWaitForEachOtherInBatchNormalisation) {
  LayerGraph graph = skip_graph();
  graph.nodes[3].kind = "batch_norm2d";
  const ClusterSpec cluster = ClusterSpec::local(3);
  Plan plan = uniform_plan("skip", {"a", "b", "c", "d"}, 2, 1, 2, ScheduleKind::GPipe);
  plan.stages[1].ranks = {RankId(1), RankId(2)};
  const auto step = [&](bool together) {
    graph.sync_batch_norm = together;
    return predict(plan, graph, cluster);
  };
  const Plan alone = step(false), met = step(true);
  const double exchanges = met.stages[1].forward_s - alone.stages[1].forward_s +
                           (met.stages[1].backward_s - alone.stages[1].backward_s);
  EXPECT_GT(exchanges, 0);
  // GPipe: the first of two microbatches comes back later by one forward of stage 0, by one backward less.
  CostModel model(graph, cluster, {});
  EXPECT_EQ(model.costs_of(model.stages_of(plan), shape_of(plan), plan.schedule).meets,
            (std::vector<char>{0, 1}));
  EXPECT_GT(met.predicted_step_s, alone.predicted_step_s + exchanges + 1e-9);
  EXPECT_TRUE(model.replicas_can_meet(ScheduleKind::GPipe, 2, model.stages_of(plan)));
  EXPECT_FALSE(model.replicas_can_meet(ScheduleKind::GPipe, 3, model.stages_of(plan)));
  const Result<Plan> refused =
      plan_layers(graph, cluster, {.microbatches = 4, .schedule = ScheduleKind::PipeDream});
  ASSERT_FALSE(refused);
  EXPECT_NE(to_string(refused.problems()).find("take turns"), std::string::npos);
  // Three replicas divide no 4 microbatches: what is planned can be trained.
  const Result<Plan> planned = plan_layers(graph, cluster, {.microbatches = 4});
  ASSERT_TRUE(planned) << to_string(planned.problems());
  for (const PlanStage& stage : planned->stages) {
    if (std::ranges::find(stage.layers, "d") != stage.layers.end()) {
      EXPECT_EQ(4 % stage.ranks.size(), 0u);
    }
  }
}

/// Three replicas on two hosts, and a second stage on the second host. For three minibatches the port of the
/// first host carries one sum of 8 MB and two messages of 2 MB in each direction, at 1 GB/s.
TEST(CostModel, APortCarriesMessagesAndSumsOneAfterTheOther) {
  LayerGraph graph{.model = "m", .edges = {{0, 1, "t", 2'000'000}}};
  graph.nodes = {{.name = "wide", .forward_s = 1e-4, .backward_weight_s = 1e-4, .parameter_bytes = 8'000'000},
                 {.name = "last", .forward_s = 1e-4, .backward_weight_s = 1e-4}};
  Plan plan = uniform_plan("m", {"wide", "last"}, 2, 1, 12, ScheduleKind::PipeDream);
  plan.stages[0].ranks = {RankId(0), RankId(1), RankId(2)};
  plan.stages[1].ranks = {RankId(3)};
  const double floor_s = (8e6 + 2 * 2e6) / 1e9 / 3;
  const ClusterSpec two_hosts = cluster_of({{2, 1e12, 0}, {2, 1e9, 0}});
  EXPECT_GE(predict(plan, graph, two_hosts).predicted_step_s / 12, floor_s);
  // Ports of half the traffic do not bind: the sum takes 9 ms, as its chain fills and drains.
  graph.edges[0].bytes = 1000;
  EXPECT_NEAR(predict(plan, graph, two_hosts).predicted_step_s / 12, (9e-3 + 2e-4) / 3, 1e-5);
}

TEST(CostModel, LinksAreThoseOfTheLevelThatJoinsTheRanks) {
  const ClusterSpec cluster = cluster_of({{2, 100, 1}, {3, 10, 5}});
  EXPECT_DOUBLE_EQ(transfer_seconds(cluster, RankId(0), RankId(1), 200), 1 + 2.0);
  EXPECT_DOUBLE_EQ(transfer_seconds(cluster, RankId(1), RankId(2), 200), 5 + 20.0);
  EXPECT_DOUBLE_EQ(all_reduce_seconds(cluster, {RankId(2)}, 300), 0);
  // Two ranks, and few bytes: everybody gets everything.
  EXPECT_DOUBLE_EQ(all_reduce_seconds(cluster, {RankId(0), RankId(1)}, 200), 1 + 2.0);
  EXPECT_DOUBLE_EQ(all_reduce_seconds(cluster, {RankId(0), RankId(2), RankId(4)}, 300), 5 + 60.0);
  // Two ranks of each of two components send to the other two: four messages over a port.
  std::vector<RankId> four;
  for (int r = 0; r < 4; ++r) four.emplace_back(r);
  EXPECT_DOUBLE_EQ(all_reduce_seconds(cluster, four, 300), 5 + 4 * 30.0);
  // Many bytes go by quarters: to who adds them, and back.
  EXPECT_DOUBLE_EQ(all_reduce_seconds(cluster_of({{4, 100, 1}}), four, 1'000'000), 2 * (1 + 3 * 2500.0));
}

TEST(CostModel, TheReplicaWithMostMicrobatchesTheLossAndTheLargestGradientCount) {
  LayerGraph graph{.model = "three", .loss_s = 10};
  for (const char* name : {"a", "b", "c"})
    graph.nodes.push_back(
        {.name = name, .forward_s = 1, .backward_input_s = 1, .backward_weight_s = 1, .parameter_bytes = 4});
  graph.edges = {{.producer = 0, .consumer = 1, .tensor = "a", .bytes = 100, .gradient_bytes = 10},
                 {.producer = 0, .consumer = 2, .tensor = "a", .bytes = 100, .gradient_bytes = 70}};
  const ClusterSpec cluster = ClusterSpec::local(3);
  const CostModel model(graph, cluster);
  const std::vector<CutStage> stages{{{0}, {RankId(0), RankId(1)}}, {{1, 2}, {RankId(2)}, true}};
  const ScheduleCosts costs = model.costs_of(stages, model.shape_of(stages, 5), ScheduleKind::GPipe);
  EXPECT_DOUBLE_EQ(costs.forward[1], 2 + 10);
  EXPECT_DOUBLE_EQ(costs.backward_input[1], 2 + 2) << "layers are recomputed, the loss is not";
  EXPECT_EQ(costs.transfer_back_bytes, std::vector<double>{70});
  EXPECT_DOUBLE_EQ(model.busiest_rank_s(ScheduleKind::GPipe, 5, {{{0, 1, 2}, {RankId(0), RankId(1)}}}),
                   3 * (9 + 10.0));
}

std::string refusal(const ClusterSpec& cluster, const PlannerOptions& options) {
  const Result<Plan> plan = plan_layers(skip_graph(), cluster, options);
  return plan ? "" : to_string(plan.problems());
}

TEST(PlanLayers, RefusesClearly) {
  EXPECT_NE(refusal(cluster_of({{8, 1e9, 0}}), {.stages = 5}).find("4 layers"), std::string::npos);
  EXPECT_NE(refusal(cluster_of({{2, 1e9, 0}}), {.stages = 3}).find("2 ranks"), std::string::npos);
  EXPECT_NE(refusal(cluster_of({{8, 1e9, 0}}), {.straight = true}).find("4 layers"), std::string::npos);
  EXPECT_NE(refusal(cluster_of({{4, 1e9, 0}}), {.microbatches = 2, .stages = 1}).find("--microbatches"),
            std::string::npos);
  EXPECT_NE(refusal(ClusterSpec::local(1), {.microbatches = -1}).find("--microbatches"), std::string::npos);
}

TEST(PlanLayers, SaysTheSmallestMemoryThatWouldDo) {
  const ClusterSpec cluster = cluster_of({{2, 1e9, 0}});
  // Straight over two ranks: [a b] [c d] needs 2 layers x 3000 + 1600 x 2 + a message sent and three posted,
  // each of 300 + 400.
  const std::string text = refusal(cluster, {.chunks = 1, .straight = true, .memory_per_rank = 100});
  EXPECT_NE(text.find("the smallest needs 12000"), std::string::npos) << text;
  // With several stages per rank the planner does not look at every cut.
  const std::string chunks = refusal(cluster, {.straight = true, .memory_per_rank = 100});
  EXPECT_NE(chunks.find("the least found needs 12000"), std::string::npos) << chunks;
  EXPECT_TRUE(plan_layers(skip_graph(), cluster, {.straight = true, .memory_per_rank = 12000}));
  EXPECT_FALSE(plan_layers(skip_graph(), cluster, {.straight = true, .memory_per_rank = 11999}));
}

TEST(PlanLayers, ManyRanksAreSpreadToo) {
  RandomStream random(5);
  const LayerGraph graph = random_chain(random, 20);
  for (int ranks : {11, 16}) {
    const ClusterSpec cluster = cluster_of({{ranks, 1e9, 1e-5}});
    const Result<Plan> plan = plan_layers(graph, cluster, {.microbatches = 16});
    ASSERT_TRUE(plan) << to_string(plan.problems());
    EXPECT_EQ(plan->num_ranks(), ranks);
    std::vector<std::string> layers;
    for (const LayerNode& node : graph.nodes) layers.push_back(node.name);
    const Plan replicated = uniform_plan("chain", layers, 1, ranks, 16, ScheduleKind::OneFOneB);
    EXPECT_LE(plan->predicted_step_s, predict(replicated, graph, cluster).predicted_step_s);
  }
}

// Above ten ranks only some replications are candidates: how far from the best of all of them.
TEST(PlanLayers, ManyRanksAreSpreadNearlyAsWellAsPossible) {
  double worst = 1;
  double sum = 0;
  constexpr int kGraphs = 12;
  for (std::uint64_t seed = 0; seed < kGraphs; ++seed) {
    RandomStream random(derive_seed(seed, "many ranks"));
    const LayerGraph graph = random_chain(random, static_cast<int>(4 + seed % 3));
    const ClusterSpec cluster =
        cluster_of({{static_cast<int>(11 + seed % 3), random.uniform(1e8, 1e10), 1e-5}});
    const PlannerOptions options{.microbatches = 12, .schedule = ScheduleKind::OneFOneB};
    const Result<Plan> plan = plan_layers(graph, cluster, options);
    ASSERT_TRUE(plan);
    const double gap = plan->predicted_step_s / 12 / Exhaustive(graph, cluster, options).least();
    EXPECT_GE(gap, 1 - 1e-9);
    worst = std::max(worst, gap);
    sum += gap;
  }
  std::printf("11 to 13 ranks against every replication: mean %.4f, worst %.4f\n", sum / kGraphs, worst);
  EXPECT_LT(worst, 1.1);
}

TEST(PlanLayers, EqualTimesGiveTheSimplerPlan) {
  const Result<Plan> plan = plan_layers(skip_graph(), ClusterSpec::local(1), {.microbatches = 7});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->schedule, ScheduleKind::OneFOneB);  // GPipe on one rank takes as long
}

TEST(PlanLayers, StraightWithAStageCountUsesThatManyRanks) {
  const Result<Plan> plan =
      plan_layers(skip_graph(), cluster_of({{4, 1e9, 0}}), {.stages = 3, .straight = true});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->num_stages(), 3);
  EXPECT_EQ(plan->num_ranks(), 3);
}

TEST(DeviceOrders, FollowTheQuickLinksOfMeasuredPairs) {
  ClusterSpec cluster = cluster_of({{4, 1e7, 1e-3}});
  // 0-2, 2-1 and 1-3 are quick: the pipeline should go that way.
  for (const auto& [a, b] : {std::pair(0, 2), {1, 2}, {1, 3}}) {
    cluster.rank_links.push_back({RankId(a), RankId(b), {1e10, 1e-6}});
  }
  RandomStream random(7);
  const LayerGraph graph = random_chain(random, 12);
  const PlannerOptions options{
      .microbatches = 8, .stages = 4, .schedule = ScheduleKind::OneFOneB, .straight = true};
  const Result<Plan> plan = plan_layers(graph, cluster, options);
  ASSERT_TRUE(plan);
  std::vector<int> ranks;
  for (const PlanStage& stage : plan->stages) ranks.push_back(stage.ranks.front().value);
  EXPECT_TRUE(ranks == (std::vector<int>{0, 2, 1, 3}) || ranks == (std::vector<int>{3, 1, 2, 0}));
  EXPECT_NEAR(plan->predicted_step_s, Exhaustive(graph, cluster, options).least() * 8, 1e-9);
}

// ---- several stages per rank
// ----------------------------------------------------------------------------

struct Chunked {
  ScheduleKind kind;
  int chunks;
};

class EveryChunkedSchedule : public testing::TestWithParam<Chunked> {};

TEST_P(EveryChunkedSchedule, IsPlannedAsItRuns) {
  const auto [kind, chunks] = GetParam();
  RandomStream random(11);
  const LayerGraph graph = random_chain(random, 20, Skips::Some);
  const ClusterSpec cluster = cluster_of({{4, 1e9, 1e-5}});
  const PlannerOptions options{.microbatches = 8, .schedule = kind, .chunks = chunks};
  const Result<PlannerAnswer> answer = explain_plan(graph, cluster, options);
  ASSERT_TRUE(answer) << to_string(answer.problems());
  const Plan& plan = answer->plan;
  EXPECT_TRUE(validate(plan, graph).empty());
  EXPECT_EQ(plan.schedule, kind);
  EXPECT_EQ(stages_per_rank(plan), chunks);
  EXPECT_EQ(plan.num_ranks(), 4);
  const Result<Schedule> schedule = schedule_of(plan, shape_of(plan), Transport::Buffered);
  ASSERT_TRUE(schedule) << to_string(schedule.problems());
  EXPECT_TRUE(check(*schedule, shape_of(plan), Transport::Buffered).empty());
  EXPECT_DOUBLE_EQ(predict(plan, graph, cluster).predicted_step_s, plan.predicted_step_s);
  EXPECT_LE(answer->search.floor_s, plan.predicted_step_s);
  // A plan is found if the memory limit is the peak of the fullest rank.
  PlannerOptions tight = options;
  tight.memory_per_rank = plan.stages[0].peak_bytes;
  for (const PlanStage& stage : plan.stages)
    tight.memory_per_rank = std::max(tight.memory_per_rank, stage.peak_bytes);
  EXPECT_TRUE(plan_layers(graph, cluster, tight));
  double parts = answer->parts.compute_s + answer->parts.imbalance_s + answer->parts.bubble_s;
  parts +=
      answer->parts.update_s + answer->parts.reduce_s + answer->parts.transfer_s + answer->parts.lengths_s;
  EXPECT_NEAR(parts, plan.predicted_step_s, 1e-12);
}

// Two equal stages, two microbatches of 1 and 3 times a unit: by hand, under GPipe, stage 0 is done with both
// forwards after 4 units, stage 1 (which waits for the long one) after 7; backwards the same. Alike: 2 + 2 +
// 2 = 6 each way.
TEST(Lengths, ALongMicrobatchMakesOthersWait) {
  LayerGraph graph{.model = "m"};
  for (const char* name : {"a", "b"})
    graph.nodes.push_back({.name = name, .forward_s = 2, .backward_input_s = 1, .backward_weight_s = 1});
  graph.edges = {{0, 1, "t", 0}};
  const ClusterSpec cluster = ClusterSpec::local(2);
  const Plan plan = uniform_plan("m", {"a", "b"}, 2, 1, 2, ScheduleKind::GPipe);
  const Plan one = uniform_plan("m", {"a", "b"}, 1, 1, 2, ScheduleKind::GPipe);
  const double alike = predict(plan, graph, cluster).predicted_step_s;
  const double alone = predict(one, graph, cluster).predicted_step_s;
  graph.dimensions = {"length"};
  graph.microbatches = {{{10}, 1}, {{30}, 3}};
  EXPECT_DOUBLE_EQ(predict(one, graph, cluster).predicted_step_s, alone);
  const double uneven = predict(plan, graph, cluster).predicted_step_s;
  EXPECT_NEAR(uneven / alike, 14.0 / 12.0, 1e-5);  // a message takes a little
  CostModel model(graph, cluster, {});
  const Result<StepBreakdown> parts = model.breakdown(plan.schedule, 2, model.stages_of(plan));
  ASSERT_TRUE(parts);
  EXPECT_NEAR(parts->lengths_s, uneven - alike, 1e-9);
  EXPECT_NEAR(parts->step_s, uneven, 1e-9);
}

INSTANTIATE_TEST_SUITE_P(Kinds, EveryChunkedSchedule,
                         testing::Values(Chunked{ScheduleKind::Interleaved, 2},
                                         Chunked{ScheduleKind::Interleaved, 3},
                                         Chunked{ScheduleKind::ZeroBubbleH1, 2},
                                         Chunked{ScheduleKind::ZeroBubbleV, 2},
                                         Chunked{ScheduleKind::VHalf, 2}, Chunked{ScheduleKind::VMin, 2},
                                         Chunked{ScheduleKind::DualPipeV, 2}));

TEST(Chunks, AreNearTheBestOfAllCuts) {
  double worst = 1;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    RandomStream random(derive_seed(seed, "chunks"));
    const LayerGraph graph = random_chain(random, 9);
    const ClusterSpec cluster = cluster_of({{2, 1e9, 1e-5}});
    const ScheduleKind kind = seed % 2 == 0 ? ScheduleKind::Interleaved : ScheduleKind::ZeroBubbleV;
    const Result<Plan> plan = plan_layers(graph, cluster, {.microbatches = 4, .schedule = kind, .chunks = 2});
    ASSERT_TRUE(plan);
    double least = kNone;
    for (int a = 1; a < 7; ++a) {
      for (int b = a + 1; b < 8; ++b) {
        for (int c = b + 1; c < 9; ++c) {
          Plan other = *plan;
          const int ends[] = {0, a, b, c, 9};
          for (int s = 0; s < 4; ++s) {
            other.stages[s].layers.clear();
            for (int i = ends[s]; i < ends[s + 1]; ++i) other.stages[s].layers.push_back(graph.nodes[i].name);
          }
          least = std::min(least, predict(other, graph, cluster).predicted_step_s);
        }
      }
    }
    EXPECT_GE(plan->predicted_step_s, least * (1 - 1e-9));
    worst = std::max(worst, plan->predicted_step_s / least);
  }
  std::printf("chunked schedules against every cut: at most %.4f times the best\n", worst);
  EXPECT_LT(worst, 1.1);
}

/// A network of the form of a U: each level has `layers` layers on the way down, as many on the way up, and a
/// large tensor from the last of the former to the first of the latter. A level has half the work and an
/// eighth of the bytes of the one above.
LayerGraph u_shaped(int levels, int layers) {
  LayerGraph graph{.model = "u"};
  std::vector<int> skips;
  double seconds = 1e-3 / layers;
  double bytes = 16e6;
  const auto add = [&](int level, const char* way, int i) {
    const int at = static_cast<int>(graph.nodes.size());
    if (at > 0) graph.edges.push_back({at - 1, at, "t" + std::to_string(at), static_cast<Bytes>(bytes)});
    graph.nodes.push_back({.name = way + std::to_string(level) + "." + std::to_string(i),
                           .forward_s = seconds,
                           .backward_input_s = seconds,
                           .backward_weight_s = seconds});
    return at;
  };
  for (int level = 0; level < levels; ++level, seconds /= 2, bytes /= 8) {
    for (int i = 0; i < layers; ++i) add(level, "down", i);
    skips.push_back(static_cast<int>(graph.nodes.size()) - 1);
  }
  for (int level = levels; level-- > 0;) {
    seconds *= 2, bytes *= 8;
    const int first = static_cast<int>(graph.nodes.size());
    for (int i = 0; i < layers; ++i) add(level, "up", i);
    if (level + 1 < levels)
      graph.edges.push_back({skips[level], first, "skip" + std::to_string(level), static_cast<Bytes>(bytes)});
  }
  return graph;
}

TEST(Chunks, AVKeepsWhatSkipsALevelOnItsRank) {
  for (const int layers : {3, 8}) {  // all cuts can be compared, or a search begins at folded ones
    const LayerGraph graph = u_shaped(4, layers);
    const ClusterSpec cluster = cluster_of({{2, 4e9, 1e-6}});
    const Result<Plan> plan =
        plan_layers(graph, cluster, {.microbatches = 8, .schedule = ScheduleKind::ZeroBubbleV, .chunks = 2});
    ASSERT_TRUE(plan);
    Plan folded = *plan;  // the first level on one rank, the others on the other
    const int all = static_cast<int>(graph.nodes.size()), ends[] = {0, layers, all / 2, all - layers, all};
    for (int s = 0; s < 4; ++s) {
      folded.stages[s].layers.clear();
      for (int i = ends[s]; i < ends[s + 1]; ++i) folded.stages[s].layers.push_back(graph.nodes[i].name);
    }
    EXPECT_LE(plan->predicted_step_s, predict(folded, graph, cluster).predicted_step_s * (1 + 1e-9))
        << layers;
    const auto stage_of = [&](const std::string& name) {
      for (std::size_t s = 0; s < plan->stages.size(); ++s)
        if (std::ranges::find(plan->stages[s].layers, name) != plan->stages[s].layers.end()) return s;
      return std::size_t{99};
    };
    for (const LayerEdge& edge : graph.edges) {
      if (!edge.tensor.starts_with("skip")) continue;
      EXPECT_EQ(plan->stages[stage_of(graph.nodes[edge.producer].name)].ranks,
                plan->stages[stage_of(graph.nodes[edge.consumer].name)].ranks)
          << edge.tensor;
    }
  }
}

TEST(Chunks, OneAsksForNone) {
  RandomStream random(12);
  const LayerGraph graph = random_chain(random, 20);
  for (int ranks : {2, 4}) {
    const Result<Plan> plan = plan_layers(graph, cluster_of({{ranks, 1e9, 1e-5}}), {.chunks = 1});
    ASSERT_TRUE(plan);
    EXPECT_EQ(stages_per_rank(*plan), 1);
  }
}

TEST(OrderedByCosts, IsNeverWorseThanTheFixedSchedulesOfItsCut) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    RandomStream random(derive_seed(seed, "ordered"));
    const LayerGraph graph = random_chain(random, 12);
    const ClusterSpec cluster = cluster_of({{3, 1e10, 1e-6}});
    const Result<Plan> ordered = plan_layers(graph, cluster, {.schedule = ScheduleKind::AutoOrder});
    ASSERT_TRUE(ordered);
    EXPECT_EQ(ordered->schedule, ScheduleKind::AutoOrder);
    EXPECT_DOUBLE_EQ(predict(*ordered, graph, cluster).predicted_step_s, ordered->predicted_step_s);
    const Result<Plan> best = plan_layers(graph, cluster, {});
    ASSERT_TRUE(best);
    EXPECT_LE(best->predicted_step_s, ordered->predicted_step_s * (1 + 1e-9));
  }
}

// Four tables of 40 MB, a layer beside them, and one that reads all five.
LayerGraph tables_and_layers() {
  LayerGraph graph{.model = "tables", .update_s_per_byte = 1e-10};
  const auto add = [&](const std::string& name, const std::string& kind, double seconds, Bytes bytes) {
    graph.nodes.push_back({.name = name,
                           .kind = kind,
                           .forward_s = seconds,
                           .backward_input_s = seconds,
                           .backward_weight_s = seconds,
                           .parameter_bytes = bytes,
                           .activation_bytes = 1000,
                           .saved_bytes = 1000});
  };
  for (const char* name : {"a", "b", "c", "d"}) add(name, "embedding", 1e-5, 40'000'000);
  add("beside", "linear", 5e-3, 1000);
  add("behind", "linear", 20e-3, 1000);
  for (int i = 0; i < 5; ++i) graph.edges.push_back({i, 5, graph.nodes[i].name, 1000});
  return graph;
}

TEST(PlanLayers, SpreadsTablesWhereThatTakesLess) {
  LayerGraph graph = tables_and_layers();
  ClusterSpec cluster = ClusterSpec::local(2);
  const PlannerAnswer answer = *explain_plan(graph, cluster, {.microbatches = 4});
  EXPECT_EQ(answer.plan.schedule, ScheduleKind::SpreadTables);
  EXPECT_EQ(to_string(validate(answer.plan, graph)), "");
  ASSERT_EQ(answer.plan.num_stages(), 4);
  EXPECT_EQ(answer.plan.stages[0].layers, (std::vector<std::string>{"a", "c"}));
  EXPECT_EQ(answer.plan.stages[3].ranks.size(), 2u);
  EXPECT_EQ(answer.search.floor_s, 0);
  ASSERT_FALSE(answer.others.empty());
  EXPECT_GT(answer.others.front().plan.predicted_step_s, answer.plan.predicted_step_s);
  // Three of the four tables and their gradients fit no rank.
  const PlannerAnswer bounded =
      *explain_plan(graph, cluster, {.microbatches = 4, .memory_per_rank = 250'000'000});
  EXPECT_EQ(bounded.plan.schedule, ScheduleKind::SpreadTables);
  // A way that was asked for is kept.
  EXPECT_EQ(plan_layers(graph, cluster, {.microbatches = 4, .schedule = ScheduleKind::GPipe})->schedule,
            ScheduleKind::GPipe);
  // Tables that are small beside what crosses are replicated.
  for (LayerNode& node : graph.nodes) node.parameter_bytes = 100;
  for (LayerEdge& edge : graph.edges) edge.bytes = 100'000'000;
  EXPECT_NE(plan_layers(graph, cluster, {.microbatches = 4})->schedule, ScheduleKind::SpreadTables);
  // No layer is a table that another one feeds, or that shares its parameters.
  LayerGraph tied = tables_and_layers();
  tied.nodes[4].tied_to = "a";
  EXPECT_EQ(spread_tables_plan(tied, 4, 4).problems().front().where, "--spread-tables");
  tied.edges.push_back({4, 1, "x", 1000});
  EXPECT_FALSE(spread_tables_plan(tied, 3, 4));
  EXPECT_TRUE(spread_tables_plan(tied, 2, 4));
}

}  // namespace
}  // namespace millrace
