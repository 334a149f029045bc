// PipeDream's recorded plans under our cost model (MILLRACE_DATA/pipedream-profiles/expected_plans.json).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>

#include "optimizer/cost/cost_model.h"
#include "optimizer/pipedream/pipedream_planner.h"
#include "optimizer/planner/planner.h"
#include "runtime/base/json.h"
#include "tests/optimizer/every_cut.h"

namespace millrace {
namespace {

/// Recorded stages as a plan on consecutive ranks; ranks may be left idle; nothing if they are not cuts.
std::optional<Plan> plan_of_record(const Json& record, const LayerGraph& graph, int ranks) {
  Plan plan{.model = graph.model, .microbatches = 16};
  std::map<std::string, int> place;
  const std::vector<int> order = *graph.topological_order();
  for (std::size_t at = 0; at < order.size(); ++at) place[graph.nodes[order[at]].name] = static_cast<int>(at);
  int rank = 0;
  for (const Json& item : record.find("stages")->items()) {
    PlanStage& stage = plan.stages.emplace_back();
    for (const Json& node : item.find("nodes")->items()) {
      // An `Input` is no layer of ours.
      if (place.contains(node.as_string())) stage.layers.push_back(node.as_string());
    }
    std::sort(stage.layers.begin(), stage.layers.end(),
              [&](const std::string& a, const std::string& b) { return place[a] < place[b]; });
    for (std::int64_t r = 0; r < item.find("replication")->as_int(); ++r)
      stage.ranks.push_back(RankId(rank++));
  }
  // A node that the original drops (a `__getitem__` sink) goes to the stage of its producer.
  for (const LayerEdge& edge : graph.edges) {
    if (graph.nodes[edge.consumer].kind.rfind("__getitem__", 0) != 0) continue;
    const std::string& sink = graph.nodes[edge.consumer].name;
    for (PlanStage& stage : plan.stages) {
      const auto has = [&](const std::string& name) {
        return std::find(stage.layers.begin(), stage.layers.end(), name) != stage.layers.end();
      };
      if (has(graph.nodes[edge.producer].name) && !has(sink)) stage.layers.push_back(sink);
    }
  }
  if (rank > ranks || !validate(plan, graph).empty()) return std::nullopt;
  return plan;
}

TEST(PipeDreamsPlans, OursIsNeverWorseUnderOurCostModel) {
  const char* folder = std::getenv("MILLRACE_DATA");
  if (folder == nullptr) GTEST_SKIP() << "MILLRACE_DATA is not set";
  const std::string base = std::string(folder) + "/pipedream-profiles/";
  const Result<Json> file = read_json(base + "expected_plans.json");
  ASSERT_TRUE(file) << to_string(file.problems());
  std::map<std::string, LayerGraph> graphs;
  std::map<std::string, Plan> ours;
  int compared = 0;
  double least = kNoPlan;
  double most = 0;
  for (const Json& record : file->find("records")->items()) {
    const std::string name = record.find("profile")->as_string();
    if (!graphs.contains(name)) {
      const Result<PipeDreamGraph> graph = read_pipedream_graph(base + name + "/graph.txt");
      ASSERT_TRUE(graph);
      Result<LayerGraph> layers = layer_graph(*graph, name);
      ASSERT_TRUE(layers);
      graphs.emplace(name, std::move(*layers));
    }
    const LayerGraph& graph = graphs.at(name);
    const Json* settings = record.find("settings");
    ClusterSpec cluster = ClusterSpec::local(1);
    cluster.levels.clear();
    for (std::size_t k = 0; k < settings->find("all_num_machines")->size(); ++k) {
      cluster.levels.push_back({static_cast<int>(settings->find("all_num_machines")->items()[k].as_int()),
                                settings->find("network_bandwidths_Bps")->items()[k].as_double(), 1e-5});
    }
    cluster.hosts = {{"localhost", cluster.num_ranks()}};
    const Json* stages = record.find("stages");
    if (stages == nullptr || stages->size() == 0 || stages->items()[0].find("nodes") == nullptr) continue;
    std::optional<Plan> theirs = plan_of_record(record, graph, cluster.num_ranks());
    if (!theirs) continue;
    const std::string key = name + cluster.to_yaml();
    if (!ours.contains(key)) {
      const Result<Plan> plan =
          plan_layers(graph, cluster, {.microbatches = 16, .schedule = ScheduleKind::OneFOneB});
      ASSERT_TRUE(plan) << to_string(plan.problems());
      ours.emplace(key, *plan);
    }
    const double ratio = predict(*theirs, graph, cluster).predicted_step_s / ours.at(key).predicted_step_s;
    EXPECT_GE(ratio, 1 - 1e-9) << name << " " << cluster.to_yaml();
    least = std::min(least, ratio);
    most = std::max(most, ratio);
    ++compared;
  }
  std::printf("%d recorded plans on %zu clusters: PipeDream's step is %.3f to %.3f times ours\n", compared,
              ours.size(), least, most);
  EXPECT_GT(compared, 100);
}

}  // namespace
}  // namespace millrace
