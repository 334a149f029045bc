#include "runtime/plan/spread_tables.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "runtime/base/text.h"

namespace millrace {

Result<Plan> spread_tables_plan(const std::string& model, const std::vector<SpreadLayer>& layers, int ranks,
                                int microbatches) {
  std::vector<std::pair<Bytes, std::string>> tables;
  std::vector<std::string> beside, behind;
  for (const SpreadLayer& layer : layers) {
    if (layer.table_bytes > 0)
      tables.emplace_back(layer.table_bytes, layer.name);
    else
      (layer.needs_table ? behind : beside).push_back(layer.name);
  }
  if (ranks < 2)
    return Problem{"--spread-tables", "spreads over the replicas, and there is one", "give --replicas N"};
  if (tables.empty())
    return Problem{"--spread-tables",
                   model + " has no tables: embeddings of what the data has, by themselves", "leave it out"};
  if (std::cmp_less(tables.size(), ranks))
    return Problem{"--spread-tables",
                   "there are " + std::to_string(ranks) + " replicas for " + std::to_string(tables.size()) +
                       " tables, and a rank without a table would wait for the others",
                   "give --replicas " + std::to_string(tables.size()) + " at most"};
  if (behind.empty())
    return Problem{"--spread-tables", "no layer of " + model + " computes with its tables", "leave it out"};
  std::ranges::stable_sort(tables, std::greater(), &std::pair<Bytes, std::string>::first);
  Plan plan{.model = model,
            .schedule = ScheduleKind::SpreadTables,
            .microbatches = microbatches,
            .planner = "spread-tables"};
  std::vector<RankId> all;
  for (int r = 0; r < ranks; ++r) {
    all.emplace_back(r);
    plan.stages.push_back({.ranks = {RankId(r)}});
  }
  std::map<std::string, PlanStage*> owner;
  for (const auto& [bytes, name] : tables) {
    PlanStage& least = *std::ranges::min_element(plan.stages, {}, &PlanStage::parameter_bytes);
    least.parameter_bytes += bytes;
    owner[name] = &least;
  }
  for (const SpreadLayer& layer : layers)
    if (const auto at = owner.find(layer.name); at != owner.end()) at->second->layers.push_back(layer.name);
  for (std::vector<std::string>* names : {&beside, &behind})
    if (!names->empty()) plan.stages.push_back({.layers = std::move(*names), .ranks = all});
  for (int s = 0; s + 1 < plan.num_stages(); ++s)
    plan.crossings.push_back({StageId(s), StageId(plan.num_stages() - 1)});
  return plan;
}

Result<Plan> spread_tables_plan(const LayerGraph& graph, int ranks, int microbatches) {
  const Result<std::vector<int>> order = graph.topological_order();
  if (!order) return order.problems();
  std::set<std::string> owners;
  for (const LayerNode& node : graph.nodes) owners.insert(node.tied_to);
  std::vector<std::vector<int>> sources(graph.nodes.size());
  for (const LayerEdge& edge : graph.edges) sources[edge.consumer].push_back(edge.producer);
  std::vector<char> depends(graph.nodes.size(), 0);  // whether it depends on a table, or is one
  std::vector<SpreadLayer> layers;
  for (const int i : *order) {
    const LayerNode& node = graph.nodes[i];
    const bool table =
        node.kind == "embedding" && sources[i].empty() && node.tied_to.empty() && !owners.contains(node.name);
    const bool needs = std::ranges::any_of(sources[i], [&](int source) { return depends[source] != 0; });
    depends[i] = table || needs;
    layers.push_back(
        {.name = node.name, .table_bytes = table ? node.parameter_bytes : 0, .needs_table = needs});
  }
  return spread_tables_plan(graph.model, layers, ranks, microbatches);
}

std::string text_of_spread_tables(const Plan& plan) {
  std::string text = "tables";
  for (const PlanStage& stage : plan.stages) {
    if (stage.ranks.size() > 1) continue;
    std::string names;
    for (const std::string& layer : stage.layers) names += (names.empty() ? " " : ", ") + layer;
    text += (text == "tables" ? ": rank " : "; rank ") + std::to_string(stage.ranks.front().value) + ":" +
            names + printed(" (%.3f MB)", double(stage.parameter_bytes) / 1e6);
  }
  return text;
}

}  // namespace millrace
