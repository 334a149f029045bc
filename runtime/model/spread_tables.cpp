#include "runtime/model/spread_tables.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/text.h"

namespace millrace {
namespace {

/// Returns the bytes of a layer's table in float32; 0: the layer is none.
Bytes table_bytes(const NamedLayer& layer, const std::set<std::string>& fields,
                  const std::set<std::string>& owners) {
  const std::vector<ParameterSpec> specs = layer.layer->parameters();
  const auto is_field = [&](const std::string& input) { return fields.contains(input); };
  if (specs.size() != 1 || specs[0].kind != ParameterKind::Embedding || specs[0].is_buffer ||
      layer.is_tied(specs[0]) || owners.contains(layer.parameter_name(specs[0])) ||
      !std::ranges::all_of(layer.inputs, is_field))
    return 0;
  Bytes bytes = sizeof(float);
  for (const std::int64_t side : specs[0].shape) bytes *= side;
  return bytes;
}

}  // namespace

Result<Plan> spread_tables_plan(const LayeredModel& model, int ranks, int microbatches) {
  std::set<std::string> fields, owners;
  for (const FieldSpec& field : model.fields) fields.insert(field.name);
  for (const NamedLayer& layer : model.layers)
    for (const auto& [own, owner] : layer.tied) owners.insert(owner);
  std::vector<std::pair<Bytes, std::string>> tables;
  std::set<std::string> of_tables;  // tensors that depend on a table
  std::vector<std::string> beside, behind;
  for (const NamedLayer& layer : model.layers) {
    if (const Bytes bytes = table_bytes(layer, fields, owners); bytes > 0) {
      tables.emplace_back(bytes, layer.name);
    } else {
      const auto depends = [&](const std::string& input) { return of_tables.contains(input); };
      const bool needs_table = std::ranges::any_of(layer.inputs, depends);
      (needs_table ? behind : beside).push_back(layer.name);
      if (!needs_table) continue;
    }
    for (std::string& output : layer.output_names()) of_tables.insert(std::move(output));
  }
  if (ranks < 2)
    return Problem{"--spread-tables", "spreads over the replicas, and there is one", "give --replicas N"};
  if (tables.empty())
    return Problem{"--spread-tables",
                   model.name + " has no tables: embeddings of what the data has, by themselves",
                   "leave it out"};
  if (std::cmp_less(tables.size(), ranks))
    return Problem{"--spread-tables",
                   "there are " + std::to_string(ranks) + " replicas for " + std::to_string(tables.size()) +
                       " tables, and a rank without a table would wait for the others",
                   "give --replicas " + std::to_string(tables.size()) + " at most"};
  if (behind.empty())
    return Problem{"--spread-tables", "no layer of " + model.name + " computes with its tables",
                   "leave it out"};
  if (!model.turns.empty())
    return Problem{"--spread-tables", model.name + " is trained in turns", "leave it out"};
  std::ranges::stable_sort(tables, std::greater(), &std::pair<Bytes, std::string>::first);
  Plan plan{.model = model.name,
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
  for (const NamedLayer& layer : model.layers)
    if (const auto at = owner.find(layer.name); at != owner.end()) at->second->layers.push_back(layer.name);
  for (std::vector<std::string>* layers : {&beside, &behind})
    if (!layers->empty()) plan.stages.push_back({.layers = std::move(*layers), .ranks = all});
  for (int s = 0; s + 1 < plan.num_stages(); ++s)
    plan.crossings.push_back({StageId(s), StageId(plan.num_stages() - 1)});
  return plan;
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
