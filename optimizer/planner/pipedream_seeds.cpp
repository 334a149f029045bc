#include "optimizer/planner/pipedream_seeds.h"

#include <algorithm>
#include <unordered_map>

#include "optimizer/pipedream/pipedream_planner.h"

namespace millrace {
namespace {

// The limit on states^2 x ranks^2 of PipeDream's recurrence: it takes a few hundredths of a second.
constexpr double kMostWork = 1e9;

std::vector<CutStage> stages_of(const PipeDreamAnswer& answer, const std::vector<int>& place) {
  std::vector<CutStage> stages;
  int rank = 0;
  for (const PipeDreamStage& found : answer.stages) {
    CutStage& stage = stages.emplace_back();
    for (const std::string& id : found.nodes) stage.nodes.push_back(std::stoi(id));
    std::sort(stage.nodes.begin(), stage.nodes.end(), [&](int a, int b) { return place[a] < place[b]; });
    for (int r = 0; r < found.replication; ++r) stage.ranks.push_back(RankId(rank++));
  }
  return stages;
}

bool forwards_only(const LayerGraph& graph, const std::vector<CutStage>& stages) {
  std::vector<int> stage_of(graph.nodes.size(), -1);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    if (stages[s].nodes.empty()) return false;
    for (int node : stages[s].nodes) stage_of[node] = static_cast<int>(s);
  }
  if (std::find(stage_of.begin(), stage_of.end(), -1) != stage_of.end()) return false;
  return std::all_of(graph.edges.begin(), graph.edges.end(),
                     [&](const LayerEdge& e) { return stage_of[e.producer] <= stage_of[e.consumer]; });
}

}  // namespace

std::vector<std::vector<CutStage>> pipedream_seeds(const LayerGraph& graph, const ClusterSpec& cluster,
                                                   int states) {
  const double size = static_cast<double>(states) * cluster.num_ranks();
  const Result<std::vector<int>> order = graph.topological_order();
  if (!order || size * size > kMostWork || cluster.num_ranks() < 2) return {};
  std::vector<int> place(order->size());
  for (std::size_t at = 0; at < order->size(); ++at) place[(*order)[at]] = static_cast<int>(at);
  PipeDreamGraph converted = pipedream_graph_of(graph);
  for (std::size_t i = 0; i < converted.nodes.size(); ++i) converted.nodes[i].id = std::to_string(i);
  PipeDreamOptions options;
  for (const ClusterLevel& level : cluster.levels) {
    options.machines.push_back(level.count);
    options.bandwidths.push_back(level.bandwidth);
  }
  if (cluster.levels.empty()) {
    options.machines = {cluster.num_ranks()};
    options.bandwidths = {cluster.hosts.size() > 1 ? cluster.network.bandwidth
                                                   : cluster.hosts[0].link.bandwidth};
  }
  std::vector<std::vector<CutStage>> seeds;
  for (bool straight : {false, true}) {
    for (bool charged : {false, true}) {
      options.straight = straight;
      options.activation_compression.reset();
      if (charged) options.activation_compression = 1;
      const Result<PipeDreamAnswer> answer = plan_pipedream(converted, options);
      if (!answer) continue;
      std::vector<CutStage> stages = stages_of(*answer, place);
      if (forwards_only(graph, stages)) seeds.push_back(std::move(stages));
    }
  }
  return seeds;
}

PipeDreamGraph pipedream_graph_of(const LayerGraph& graph) {
  PipeDreamGraph result;
  for (const LayerNode& layer : graph.nodes) {
    PipeDreamNode node;
    node.id = layer.name;
    node.description = layer.kind;
    node.forward_ms = layer.forward_s * 1e3;
    node.backward_ms = layer.backward_s() * 1e3;
    node.activation_sizes = {static_cast<double>(layer.activation_bytes)};
    node.parameter_bytes = static_cast<double>(layer.parameter_bytes);
    result.nodes.push_back(std::move(node));
  }
  for (const LayerEdge& edge : graph.edges) result.edges.emplace_back(edge.producer, edge.consumer);
  return result;
}

Result<LayerGraph> layer_graph(const PipeDreamGraph& graph, const std::string& model) {
  LayerGraph result;
  result.model = model;
  result.device = "as profiled";
  Problems problems;
  std::vector<char> is_input(graph.nodes.size());
  for (std::size_t v = 0; v < graph.nodes.size(); ++v)
    is_input[v] = graph.nodes[v].description.starts_with("Input");
  for (const auto& [from, to] : graph.edges) is_input[to] = 0;
  std::vector<int> place(graph.nodes.size(), -1);
  for (std::size_t v = 0; v < graph.nodes.size(); ++v) {
    const PipeDreamNode& node = graph.nodes[v];
    if (is_input[v]) {
      result.data_s += node.forward_ms / 1e3;
      continue;
    }
    place[v] = static_cast<int>(result.nodes.size());
    LayerNode& layer = result.nodes.emplace_back();
    layer.name = node.id;
    layer.kind = node.description;
    layer.forward_s = node.forward_ms / 1e3;
    layer.backward_input_s = layer.backward_weight_s = node.backward_ms / 2e3;
    layer.parameter_bytes = saturating_bytes(node.parameter_bytes);
    layer.activation_bytes = layer.saved_bytes = saturating_bytes(node.activation_bytes());
    if (node.forward_ms < 0 || node.backward_ms < 0 || node.parameter_bytes < 0 || layer.saved_bytes < 0) {
      problems.push_back({node.id, "has a negative time or size", ""});
    }
  }
  for (const auto& [from, to] : graph.edges) {
    const int producer = place[from];
    if (producer < 0) continue;  // the first layers read the batch
    const LayerNode& node = result.nodes[producer];
    result.edges.push_back({producer, place[to], node.name, node.activation_bytes});
  }
  if (result.nodes.empty()) problems.push_back({model, "has no layers", ""});
  if (!problems.empty()) return problems;
  if (Result<std::vector<int>> order = result.topological_order(); !order) return order.problems();
  return result;
}

}  // namespace millrace
