#include "runtime/stage/stage_layout.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "runtime/base/error.h"

namespace millrace {
namespace {

/// Output shape of every layer for one microbatch. Throws ConfigError where shapes do not fit.
std::vector<Shape> infer_shapes(const LayeredModel& model, int microbatch_size) {
  std::unordered_map<std::string, Shape> shape_of_tensor;
  Shape input{microbatch_size};
  input.insert(input.end(), model.input_shape.begin(), model.input_shape.end());
  shape_of_tensor["input"] = input;
  std::vector<Shape> result;
  for (const NamedLayer& layer : model.layers) {
    std::vector<Shape> inputs;
    for (const std::string& name : layer.inputs) inputs.push_back(shape_of_tensor.at(name));
    try {
      result.push_back(layer.layer->output_shape(inputs));
    } catch (const ConfigError& error) {
      throw ConfigError("model " + model.name + ", layer " + layer.name + ": " + error.what(), error.hint());
    }
    shape_of_tensor[layer.name] = result.back();
  }
  return result;
}

}  // namespace

bool StageLayout::needs_input(StageId stage) const {
  return std::ranges::any_of(layers[stage.value], [&](int layer) {
    return std::ranges::find(model.layers[layer].inputs, "input") != model.layers[layer].inputs.end();
  });
}

Result<StageLayout> make_layout(const LayeredModel& model, const Plan& plan, int microbatch_size) {
  if (Problems problems = validate(plan, model.name, model.layer_names()); !problems.empty()) return problems;
  StageLayout layout{.model = model, .microbatch_size = microbatch_size};
  std::unordered_map<std::string, int> layer_index;
  for (int i = 0; i < static_cast<int>(model.layers.size()); ++i) layer_index[model.layers[i].name] = i;

  std::vector<int> stage_of(model.layers.size(), -1);
  for (int s = 0; s < plan.num_stages(); ++s) {
    auto& members = layout.layers.emplace_back();
    layout.recomputes.push_back(plan.stages[s].recompute);
    for (const std::string& name : plan.stages[s].layers) {
      members.push_back(layer_index.at(name));
      stage_of[members.back()] = s;
    }
    std::ranges::sort(members);
  }
  try {
    layout.output_shapes = infer_shapes(model, microbatch_size);
  } catch (const ConfigError& error) {
    return Problem{"model " + model.name, error.what(), error.hint()};
  }

  std::set<std::tuple<int, int, int>> crossings;        // (from, to, producing layer)
  std::vector<std::vector<int>> uses(stage_of.size());  // of each layer's output, ascending
  for (int consumer = 0; consumer < static_cast<int>(model.layers.size()); ++consumer) {
    for (const std::string& name : model.layers[consumer].inputs) {
      if (name == "input") continue;
      const int producer = layer_index.at(name);
      if (stage_of[producer] > stage_of[consumer]) {
        return Problem{"plan",
                       "layer " + model.layers[consumer].name + " in stage " +
                           std::to_string(stage_of[consumer]) + " needs " + name + " of the later stage " +
                           std::to_string(stage_of[producer]),
                       "put layers into stages in execution order"};
      }
      if (stage_of[producer] < stage_of[consumer])
        crossings.insert({stage_of[producer], stage_of[consumer], producer});
      uses[producer].push_back(consumer);
    }
  }
  for (auto [from, to, producer] : crossings) {
    Crossing crossing{model.layers[producer].name, StageId(from), StageId(to),
                      layout.output_shapes[producer]};
    int last_elsewhere = -1;
    for (int use : uses[producer]) {
      if (stage_of[use] == to)
        crossing.uses.insert(crossing.uses.begin(), use);
      else
        last_elsewhere = use;
    }
    crossing.summed = crossing.uses.back() > last_elsewhere;
    layout.crossings.push_back(std::move(crossing));
    const StageLink link{StageId(from), StageId(to)};
    if (layout.links.empty() || !(layout.links.back() == link)) layout.links.push_back(link);
  }
  return layout;
}

PipelineShape shape_of(const Plan& plan, const StageLayout& layout, int microbatches) {
  PipelineShape shape = shape_of(plan, microbatches);
  shape.links = layout.links;
  return shape;
}

}  // namespace millrace
