#include "runtime/model/turns.h"

#include <algorithm>
#include <set>

#include "runtime/layers/carrying_layer.h"
#include "runtime/layers/repeated_layer.h"

namespace millrace {
namespace {

bool begins_with_any(const std::string& name, const std::vector<std::string>& beginnings) {
  return std::ranges::any_of(beginnings, [&](const std::string& b) { return name.starts_with(b); });
}

/// Returns a repeated layer with only those calls that compute a tensor in `needed`. Any other layer is
/// returned unchanged.
NamedLayer as_needed(const NamedLayer& named, const std::set<std::string>& needed) {
  const auto* several = dynamic_cast<const RepeatedLayer*>(named.layer.get());
  if (!several) return named;
  const auto calls = static_cast<std::size_t>(several->calls());
  const std::size_t read = named.inputs.size() / calls, made = named.outputs.size() / calls;
  NamedLayer result = named;
  result.inputs.clear();
  result.outputs.clear();
  int kept = 0;
  for (std::size_t c = 0; c < calls; ++c) {
    const auto outputs = named.outputs.begin() + static_cast<std::ptrdiff_t>(c * made),
               inputs = named.inputs.begin() + static_cast<std::ptrdiff_t>(c * read);
    const auto end = outputs + static_cast<std::ptrdiff_t>(made);
    if (std::none_of(outputs, end, [&](const std::string& name) { return needed.contains(name); })) continue;
    result.outputs.insert(result.outputs.end(), outputs, end);
    result.inputs.insert(result.inputs.end(), inputs, inputs + static_cast<std::ptrdiff_t>(read));
    ++kept;
  }
  if (kept < several->calls()) result.layer = repeated(several->layer(), kept);
  return result;
}

bool has_state(const NamedLayer& layer) {
  return !layer.layer->parameters().empty();
}

}  // namespace

void add_turn(LayeredModel& model, const TurnOptions& options) {
  Turn turn{options.name, model};
  turn.model.turns.clear();
  std::erase_if(turn.model.heads, [&](const NamedHead& head) {
    return std::ranges::find(options.heads, head.name) == options.heads.end();
  });
  std::set<std::string> needed;
  for (const NamedHead& head : turn.model.heads) needed.insert(head.inputs.begin(), head.inputs.end());
  std::vector<NamedLayer> layers;  // from the last to the first
  for (auto layer = model.layers.rbegin(); layer != model.layers.rend(); ++layer) {
    const std::vector<std::string> outputs = layer->output_names();
    if (std::ranges::none_of(outputs, [&](const std::string& name) { return needed.contains(name); }))
      continue;
    NamedLayer kept = as_needed(*layer, needed);
    kept.frozen = !kept.name.starts_with(options.trains);
    kept.keeps_statistics = begins_with_any(kept.name, options.keeps_statistics);
    needed.insert(kept.inputs.begin(), kept.inputs.end());
    layers.push_back(std::move(kept));
  }
  turn.model.layers.assign(std::make_move_iterator(layers.rbegin()), std::make_move_iterator(layers.rend()));
  model.turns.push_back(std::move(turn));
}

Problems validate_turns(const LayeredModel& model) {
  Problems problems;
  if (model.turns.empty()) return problems;
  const std::string where = "model " + model.name;
  const auto say = [&](const std::string& what, const std::string& hint) {
    problems.push_back({where, what, hint});
  };
  for (const NamedLayer& layer : model.layers) {
    if (!layer.tied.empty())
      say("layer " + layer.name + " is tied, and the model is trained in turns", "tie nothing");
    if (dynamic_cast<const CarriesState*>(layer.layer.get()))
      say("layer " + layer.name + " carries a state, and the model is trained in turns", {});
  }
  for (const Turn& turn : model.turns) {
    if (turn.model.layer_names() != model.layer_names()) {
      say("turn " + turn.name + " does not run all layers", "its heads must depend on each of them");
      continue;
    }
    // Between the first and the last layer that a turn trains, no layer may belong to another turn.
    int runs = 0;
    bool inside = false;
    for (const NamedLayer& layer : turn.model.layers) {
      if (!has_state(layer)) continue;
      runs += !inside && !layer.frozen;
      inside = !layer.frozen;
    }
    if (runs != 1)
      say("turn " + turn.name + " trains layers in " + std::to_string(runs) + " places",
          "those of a turn follow each other");
  }
  if (!problems.empty()) return problems;
  const auto count = [&](const auto& in_turn) { return std::ranges::count_if(model.turns, in_turn); };
  for (std::size_t l = 0; l < model.layers.size(); ++l) {
    if (has_state(model.layers[l]) && count([&](const Turn& t) { return !t.model.layers[l].frozen; }) != 1)
      say("layer " + model.layers[l].name + " is not trained by exactly one turn", {});
  }
  for (const NamedHead& head : model.heads) {
    if (count([&](const Turn& t) {
          return std::ranges::find(t.model.heads, head.name, &NamedHead::name) != t.model.heads.end();
        }) != 1)
      say("head " + head.name + " is not that of exactly one turn", {});
  }
  return problems;
}

}  // namespace millrace
