#include "models/decoding_layers.h"

#include <algorithm>
#include <sstream>

#include <ATen/ops/empty.h>

namespace millrace {
namespace {

/// The names of a layer's parameters in the state_dict; a tied one's is its owner's.
std::vector<std::string> names_of(const NamedLayer& layer) {
  std::vector<std::string> names;
  for (const ParameterSpec& spec : layer.layer->parameters()) {
    const auto tie = std::ranges::find(layer.tied, spec.name, [](const auto& t) { return t.first; });
    names.push_back(tie == layer.tied.end() ? layer.parameter_name(spec) : tie->second);
  }
  return names;
}

}  // namespace

FindWeight finder_of(const WeightFiles& files) {
  return [files](const std::string& name) -> std::optional<FoundWeight> {
    const auto found = std::ranges::find_if(files, [&](const auto* file) { return file->contains(name); });
    if (found == files.end()) return std::nullopt;
    return FoundWeight{(*found)->path(), (*found)->shape(name),
                       [file = *found, name] { return file->tensor(name); }};
  };
}

FindWeight finder_of(const NamedTensors& weights, const std::string& whose) {
  return [&weights, whose](const std::string& name) -> std::optional<FoundWeight> {
    const auto found = std::ranges::find(weights, name, &NamedTensors::value_type::first);
    if (found == weights.end()) return std::nullopt;
    return FoundWeight{whose, found->second.sizes().vec(), [tensor = found->second] { return tensor; }};
  };
}

Result<std::vector<HeldLayer>> hold_layers(const LayeredModel& model, const FindWeight& find,
                                           const std::string& first, const std::string& kind,
                                           const std::function<bool(const std::string& layer)>& holds) {
  Problems problems;
  std::map<std::string, at::Tensor> read;  // a tied one once
  std::vector<HeldLayer> all;
  for (const NamedLayer& layer : model.layers) {
    const bool held = holds(layer.name);
    HeldLayer one{.layer = layer, .parameters = {}};
    const std::vector<std::string> names = names_of(layer);
    for (std::size_t i = 0; i < names.size(); ++i) {
      const std::optional<FoundWeight> found = find(names[i]);
      const Shape shape = layer.layer->parameters()[i].shape;
      if (!found) {
        problems.push_back({first, "has no tensor " + names[i], kind + " has it"});
      } else if (found->shape != shape) {
        std::ostringstream text;
        text << names[i] << " has shape " << c10::IntArrayRef(found->shape) << ", " << kind << " "
             << c10::IntArrayRef(shape);
        problems.push_back({found->where, text.str(), "the weights are not of one model"});
      } else if (held) {
        at::Tensor& tensor = read[names[i]];
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
