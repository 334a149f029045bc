#include "models/translate/decoding_layers.h"

#include <algorithm>
#include <sstream>

#include <ATen/ops/empty.h>

namespace millrace {
namespace {

/// Returns the names of a layer's parameter in files. For a tied parameter it is its owner's name.
std::vector<std::string> names_of(const NamedLayer& layer, const ParameterSpec& spec) {
  const auto tie = std::ranges::find(layer.tied, spec.name, [](const auto& t) { return t.first; });
  return tie == layer.tied.end() ? names_of_weight(layer, spec) : std::vector{tie->second};
}

}  // namespace

FindWeight finder_of(const WeightFiles& files) {
  return
      [find = WeightNames(files, {})](const std::vector<std::string>& names) -> std::optional<FoundWeight> {
        std::vector<WeightPlace> places;
        for (const std::string& name : names)
          if (const auto place = find.find(name)) places.push_back(*place);
        if (places.empty()) return std::nullopt;
        if (const auto average = average_of(places.front())) places = {*average};
        const auto& [file, name] = places.front();
        return FoundWeight{file->path(), file->shape(name), [places] { return read_weight(places); }};
      };
}

FindWeight finder_of(const NamedTensors& weights, const std::string& whose) {
  return [&weights, whose](const std::vector<std::string>& names) -> std::optional<FoundWeight> {
    const auto found = std::ranges::find(weights, names.front(), &NamedTensors::value_type::first);
    if (found == weights.end()) return std::nullopt;
    return FoundWeight{whose, found->second.sizes().vec(), [tensor = found->second] { return tensor; }};
  };
}

Result<std::vector<HeldLayer>> hold_layers(const LayeredModel& model, const FindWeight& find,
                                           const std::string& first, const std::string& kind,
                                           const std::function<bool(const std::string& layer)>& holds) {
  Problems problems;
  std::map<std::string, at::Tensor> read;  // so that a tied weight is read once
  std::vector<HeldLayer> all;
  for (const NamedLayer& layer : model.layers) {
    const bool held = holds(layer.name);
    HeldLayer one{.layer = layer, .parameters = {}};
    for (const ParameterSpec& spec : layer.layer->parameters()) {
      const std::vector<std::string> names = names_of(layer, spec);
      const std::string& name = names.front();
      const std::optional<FoundWeight> found = find(names);
      const Shape& shape = spec.shape;
      if (!found) {
        problems.push_back({first, "has no tensor " + name, kind + " has it"});
      } else if (found->shape != shape) {
        std::ostringstream text;
        text << name << " has shape " << c10::IntArrayRef(found->shape) << ", " << kind << " "
             << c10::IntArrayRef(shape);
        problems.push_back({found->where, text.str(), "the weights are not of one model"});
      } else if (held) {
        at::Tensor& tensor = read[name];
        if (!tensor.defined()) tensor = found->read().to(at::kFloat);
        one.parameters.push_back(tensor);
      }
    }
    if (held) all.push_back(std::move(one));
  }
  if (!problems.empty()) return problems;
  return all;
}

at::Tensor forward_of(const NamedLayer& layer, const std::vector<at::Tensor>& parameters,
                      const TensorsByName& values) {
  std::vector<at::Tensor> inputs;
  for (const std::string& input : layer.inputs) inputs.push_back(values.at(input));
  return layer.layer->forward(inputs, parameters, {}, CallContext{.training = false}, nullptr);
}

at::Tensor step_of(const NamedLayer& layer, const std::vector<at::Tensor>& parameters,
                   const TensorsByName& values, LstmStates& states) {
  if (layer.layer->kind() != "lstm") return forward_of(layer, parameters, values);
  LstmState& state = states[layer.name];
  state = lstm_step(values.at(layer.inputs[0]), state, parameters);
  return state.h;
}

void reorder(LstmStates& states, const at::Tensor& from) {
  for (auto& [layer, state] : states) {
    state.h = state.h.index_select(0, from);
    state.c = state.c.index_select(0, from);
  }
}

}  // namespace millrace
