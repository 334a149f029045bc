// Every number of every file replaced by numbers that no file should hold: refused with its place, or
// harmless.
#include <gtest/gtest.h>

#include <cmath>

#include "optimizer/cost/cost_model.h"
#include "optimizer/pipedream/pipedream_planner.h"
#include "optimizer/planner/planner.h"
#include "runtime/base/json.h"
#include "runtime/base/random.h"
#include "runtime/plan/pipedream_formats.h"

namespace millrace {
namespace {

const char* const kNumbers[] = {
    "-1",   "-1e-300", "4294967296", "4294967300",   "9223372036854775807", "1e308",
    "-0.5", "1e18",    "\"NaN\"",    "\"Infinity\"", "9007199254740993",    "nan",
    ".inf", "-inf",    "1e400",      "2147483648"};

LayerGraph small_graph() {
  LayerGraph graph{.model = "toy", .microbatch = 2, .loss_s = 0.25, .update_s_per_byte = 1e-10};
  for (int i = 0; i < 3; ++i) {
    graph.nodes.push_back({.name = "l" + std::to_string(i),
                           .kind = "x",
                           .forward_s = 0.5,
                           .backward_input_s = 0.75,
                           .backward_weight_s = 0.625,
                           .parameter_bytes = 1000,
                           .activation_bytes = 200,
                           .saved_bytes = 300,
                           .workspace_bytes = 40});
    if (i > 0) graph.edges.push_back({i - 1, i, "l" + std::to_string(i - 1), 200});
  }
  return graph;
}

/// All texts that come of replacing one number of `text` by one of kNumbers.
std::vector<std::string> damaged(const std::string& text) {
  std::vector<std::string> result;
  for (std::size_t at = 0; at < text.size();) {
    const bool starts = std::isdigit(static_cast<unsigned char>(text[at])) &&
                        (at == 0 || std::string_view(" :[,=").find(text[at - 1]) != std::string_view::npos);
    std::size_t end = at;
    while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) || text[end] == '.' ||
                                 text[end] == '-' || text[end] == '+'))
      ++end;
    if (starts)
      for (const char* number : kNumbers) result.push_back(text.substr(0, at) + number + text.substr(end));
    at = starts ? end : at + 1;
  }
  return result;
}

void expect_sane(const LayerGraph& graph, const ClusterSpec& cluster, const std::string& text) {
  const Result<Plan> plan = plan_layers(graph, cluster, {.microbatches = 4});
  if (!plan) return;
  EXPECT_TRUE(std::isfinite(plan->predicted_step_s) && plan->predicted_step_s >= 0) << text;
  for (const PlanStage& stage : plan->stages) {
    EXPECT_GE(stage.peak_bytes, 0) << text;
    EXPECT_GE(stage.parameter_bytes, 0) << text;
    EXPECT_TRUE(std::isfinite(stage.forward_s) && stage.forward_s >= 0) << text;
  }
}

TEST(HostileNumbers, ProfilesAreRefusedOrHarmless) {
  int refused = 0, accepted = 0;
  for (const std::string& text : damaged(small_graph().to_json())) {
    const Result<LayerGraph> graph = LayerGraph::parse(text, "p.json");
    if (!graph) {
      ++refused;
      EXPECT_NE(to_string(graph.problems()).find("p.json"), std::string::npos) << text;
      continue;
    }
    ++accepted;
    expect_sane(*graph, ClusterSpec::local(2), text);
  }
  EXPECT_GT(refused, 200);
  EXPECT_GT(accepted, 20);
}

TEST(HostileNumbers, GraphsOfPipeDreamAreRefusedWithTheLine) {
  const std::string good =
      "a -- L -- forward_compute_time=1.000, backward_compute_time=2.000, activation_size=[10.0; 20.0], "
      "parameter_size=4.000 -- stage_id=3\n"
      "b -- L -- forward_compute_time=1.000, backward_compute_time=2.000, activation_size=30.0, "
      "parameter_size=4.000\n\ta -- b";
  for (const std::string& text : damaged(good)) {
    const Result<PipeDreamGraph> graph = parse_pipedream_graph(text, "g.txt");
    if (!graph) {
      EXPECT_EQ(to_string(graph.problems()).rfind("g.txt", 0), 0u) << to_string(graph.problems());
      continue;
    }
    const Result<LayerGraph> layers = layer_graph(*graph, "m");
    ASSERT_TRUE(layers) << text;
    expect_sane(*layers, ClusterSpec::local(2), text);
    const Result<PipeDreamAnswer> answer = plan_pipedream(*graph, {.machines = {2}, .bandwidths = {1e9}});
    ASSERT_TRUE(answer) << text;
    EXPECT_TRUE(std::isfinite(answer->pipeline_time_s) && answer->pipeline_time_s >= 0) << text;
  }
  for (const char* number : {"nan", "inf", "-1.000", "1e300"}) {
    std::string text = good;
    text.replace(text.find("1.000"), 5, number);
    const Result<PipeDreamGraph> graph = parse_pipedream_graph(text, "g.txt");
    ASSERT_FALSE(graph) << number;
    EXPECT_NE(to_string(graph.problems()).find("g.txt:1:32: '" + std::string(number) + "'"),
              std::string::npos)
        << to_string(graph.problems());
  }
}

TEST(HostileNumbers, PlansAreRefusedOrHarmless) {
  const LayerGraph graph = small_graph();
  const Plan plan = *plan_layers(graph, ClusterSpec::local(2), {.microbatches = 4, .stages = 2});
  for (const std::string& text : damaged(plan.to_json())) {
    const Result<Plan> read = Plan::parse(text, "plan.json");
    if (!read) {
      EXPECT_NE(to_string(read.problems()).find("plan.json"), std::string::npos) << text;
      continue;
    }
    EXPECT_GE(read->microbatches, 1);
    EXPECT_LE(read->microbatches, 1 << 20) << text;
    EXPECT_TRUE(std::isfinite(read->predicted_step_s) && read->predicted_step_s >= 0) << text;
    for (const PlanStage& stage : read->stages) EXPECT_GE(stage.peak_bytes, 0) << text;
  }
  std::string wrapped = plan.to_json();
  wrapped.replace(wrapped.find("\"microbatches\": 4"), 17, "\"microbatches\": 4294967300");
  EXPECT_FALSE(Plan::parse(wrapped, "plan.json"));
}

TEST(HostileNumbers, ClustersAreRefusedOrHarmless) {
  const char* const files[] = {
      "memory: 8000\nlevels: [{count: 2, bandwidth: 1e9, latency: 1e-5}, {count: 2, bandwidth: 1e8}]\n",
      "kinds: [{name: v, speed: 2, memory: 1000, copy_bandwidth: 1e9}]\n"
      "hosts: [{name: a, devices: 2, kind: v, bandwidth: 1e9, latency: 1e-6}, {name: b, devices: 2, "
      "bandwidth: 1e9}]\nnetwork: {bandwidth: 1e8, latency: 1e-5}\n"
      "rank_links: [{between: [0, 3], bandwidth: 1e7}]\n"};
  for (const char* file : files) {
    ASSERT_TRUE(ClusterSpec::parse(file, "c.yaml")) << file;
    for (const std::string& text : damaged(file)) {
      const Result<ClusterSpec> cluster = ClusterSpec::parse(text, "c.yaml");
      if (!cluster) {
        EXPECT_NE(to_string(cluster.problems()).find("c.yaml"), std::string::npos) << text;
        continue;
      }
      EXPECT_GE(cluster->num_ranks(), 1) << text;
      EXPECT_LE(cluster->num_ranks(), 1 << 20) << text;
      EXPECT_GE(cluster->memory_per_rank, 0) << text;
      if (cluster->num_ranks() <= 8) expect_sane(small_graph(), *cluster, text);
    }
  }
  for (const char* memory : {"infMiB", "nanGiB", "0x10MB", "-1GiB", "1e40GiB", "8 PiB"}) {
    EXPECT_FALSE(ClusterSpec::parse(
        "memory: \"" + std::string(memory) + "\"\nlevels: [{count: 2, bandwidth: 1e9}]\n", "c.yaml"))
        << memory;
  }
}

// Sums over layers, versions and stashed microbatches: what is too much is too much, not negative.
TEST(HostileNumbers, BytesSaturateInsteadOfWrapping) {
  LayerGraph graph = small_graph();
  for (LayerNode& node : graph.nodes) node.saved_bytes = kMostStoredBytes / 3;
  ASSERT_TRUE(LayerGraph::parse(graph.to_json(), "p"));
  Plan plan = uniform_plan("toy", {"l0", "l1", "l2"}, 1, 1, 1 << 14, ScheduleKind::GPipe);
  const Plan predicted = predict(plan, graph, ClusterSpec::local(1));
  EXPECT_EQ(predicted.stages[0].peak_bytes, kMostBytes);
  EXPECT_TRUE(Plan::parse(predicted.to_json(), "p"));
  const Result<Plan> none =
      plan_layers(graph, ClusterSpec::local(2),
                  {.microbatches = 1 << 14, .schedule = ScheduleKind::GPipe, .memory_per_rank = 8 * kGiB});
  EXPECT_FALSE(none);
  graph.nodes.push_back(graph.nodes[0]);
  graph.nodes.back().name = "more";
  graph.nodes.back().saved_bytes = kMostStoredBytes;
  EXPECT_FALSE(LayerGraph::parse(graph.to_json(), "p"));
  EXPECT_EQ(saturating_sum(kMostBytes, 1), kMostBytes);
  EXPECT_EQ(saturating_product(kMostBytes / 2, 3), kMostBytes);
  EXPECT_EQ(saturating_bytes(1e30), kMostBytes);
  EXPECT_EQ(saturating_bytes(std::nan("")), 0);
}

// ---- PipeDream's input is data, not a layer

TEST(PipeDreamInput, IsTheTimeOfLoadingAndNoLayer) {
  const std::string text =
      "n1 -- Input0 -- forward_compute_time=636.000, backward_compute_time=0.000, activation_size=4.0, "
      "parameter_size=0.000\n"
      "n2 -- Conv -- forward_compute_time=1.000, backward_compute_time=2.000, activation_size=30.0, "
      "parameter_size=4.000\n"
      "n3 -- Inputs of a name -- forward_compute_time=1.000, backward_compute_time=2.000, "
      "activation_size=30.0, "
      "parameter_size=4.000\n\tn1 -- n2\n\tn2 -- n3";
  const Result<LayerGraph> graph = layer_graph(*parse_pipedream_graph(text, "g"), "m");
  ASSERT_TRUE(graph);
  ASSERT_EQ(graph->nodes.size(), 2u);  // a layer that is read from is one, whatever its name
  EXPECT_EQ(graph->nodes[0].name, "n2");
  EXPECT_EQ(graph->edges.size(), 1u);
  EXPECT_DOUBLE_EQ(graph->data_s, 0.636);
  const Plan plan = *plan_layers(*graph, ClusterSpec::local(1), {.microbatches = 1});
  EXPECT_NEAR(plan.predicted_step_s, 0.006, 1e-12);
  const Result<LayerGraph> again = LayerGraph::parse(graph->to_json(), "p");
  ASSERT_TRUE(again);
  EXPECT_DOUBLE_EQ(again->data_s, 0.636);
}

}  // namespace
}  // namespace millrace
