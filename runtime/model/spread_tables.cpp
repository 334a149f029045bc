#include "runtime/model/spread_tables.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace millrace {
namespace {

/// Returns the bytes of a layer's table in float32; 0: the layer is not a table.
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
  if (!model.turns.empty())
    return Problem{"--spread-tables", model.name + " is trained in turns", "leave it out"};
  std::set<std::string> fields, owners;
  for (const FieldSpec& field : model.fields) fields.insert(field.name);
  for (const NamedLayer& layer : model.layers)
    for (const auto& [own, owner] : layer.tied) owners.insert(owner);
  std::set<std::string> of_tables;  // tensors that depend on a table
  std::vector<SpreadLayer> layers;
  for (const NamedLayer& layer : model.layers) {
    const bool needs = std::ranges::any_of(
        layer.inputs, [&](const std::string& input) { return of_tables.contains(input); });
    layers.push_back(
        {.name = layer.name, .table_bytes = table_bytes(layer, fields, owners), .needs_table = needs});
    if (!needs && layers.back().table_bytes == 0) continue;
    for (std::string& output : layer.output_names()) of_tables.insert(std::move(output));
  }
  return spread_tables_plan(model.name, layers, ranks, microbatches);
}

}  // namespace millrace
