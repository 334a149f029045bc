#include "runtime/model/stage_layout.h"

#include <algorithm>
#include <new>
#include <set>
#include <tuple>
#include <unordered_map>

#include "runtime/base/error.h"
#include "runtime/base/failure_text.h"
#include "runtime/layers/shape_errors.h"

namespace millrace {
namespace {

std::vector<TensorSpec> specs_of(const std::vector<TensorSpec>& all, const std::vector<int>& which) {
  std::vector<TensorSpec> result;
  for (int tensor : which) result.push_back(all[tensor]);
  return result;
}

void cast_floating(std::vector<TensorSpec>& specs, at::ScalarType dtype) {
  for (TensorSpec& spec : specs) {
    if (at::isFloatingType(spec.dtype)) spec.dtype = dtype;
  }
}

/// Returns the inputs as the layer receives them: cast if the layout casts.
std::vector<TensorSpec> as_cast(const StageLayout& layout, const Layer& layer,
                                std::vector<TensorSpec> inputs) {
  if (layout.casts()) cast_floating(inputs, compute_dtype(layer.cast_policy(), inputs, layout.lower));
  return inputs;
}

/// Returns the inputs as heads receive them: bfloat16 and float16 become float32.
std::vector<TensorSpec> widened(std::vector<TensorSpec> inputs) {
  for (TensorSpec& spec : inputs) {
    if (spec.dtype == at::kBFloat16 || spec.dtype == at::kHalf) spec.dtype = at::kFloat;
  }
  return inputs;
}

at::ScalarType lower_of(Precision precision) {
  switch (precision) {
    case Precision::Float32:
      break;
    case Precision::BFloat16:
      return at::kBFloat16;
    case Precision::Float16:
      return at::kHalf;
  }
  return at::kFloat;
}

/// Returns the specs of every tensor for a microbatch of `extent`. Throws ConfigError if shapes do not fit.
std::vector<TensorSpec> infer_specs(const StageLayout& layout, const BatchExtent& extent) {
  const LayeredModel& model = layout.model;
  std::vector<TensorSpec> specs(layout.tensors.size());
  for (std::size_t f = 0; f < model.fields.size(); ++f)
    specs[f] = {.shape = field_shape(model.fields[f], extent),
                .dtype = model.fields[f].dtype,
                .differentiable = false};
  // An error names the layer or head, and its input shapes. The exception may be LibTorch's, or any that a
  // user's own layer throws.
  const auto named = [&](const std::string& reader, const std::vector<int>& reads, auto&& work) {
    const auto context = [&] {
      std::string shapes;
      for (const int tensor : reads)
        shapes += (shapes.empty() ? "" : " and ") + layout.tensors[tensor].name + " " +
                  text_of(specs[tensor].shape);
      return "model " + model.name + ", " + reader + ", which reads " + shapes + ": ";
    };
    try {
      work();
    } catch (const ConfigError& error) {
      throw ConfigError(context() + error.what(), error.hint());
    } catch (const Error&) {
      throw;
    } catch (const std::bad_alloc&) {
      throw;
    } catch (...) {
      throw ConfigError(context() + text_of_failure(), "do its inputs have the shapes that it expects?");
    }
  };
  for (std::size_t l = 0; l < model.layers.size(); ++l) {
    named("layer " + std::to_string(l) + " '" + model.layers[l].name + "'", layout.reads[l], [&] {
      const Layer& layer = *model.layers[l].layer;
      std::vector<TensorSpec> made = layer.outputs(as_cast(layout, layer, specs_of(specs, layout.reads[l])));
      if (made.size() != layout.makes[l].size())
        throw ConfigError("makes " + std::to_string(made.size()) + " tensors, the model names " +
                          std::to_string(layout.makes[l].size()));
      for (std::size_t i = 0; i < made.size(); ++i) {
        made[i].differentiable = made[i].differentiable && at::isFloatingType(made[i].dtype);
        specs[layout.makes[l][i]] = std::move(made[i]);
      }
    });
  }
  for (std::size_t h = 0; h < model.heads.size(); ++h)
    named("head " + model.heads[h].name, layout.head_reads[h],
          [&] { model.heads[h].head->check(widened(specs_of(specs, layout.head_reads[h]))); });
  return specs;
}

/// Numbers the fields and the outputs of layers, and lists the tensors that each layer and head reads.
void number_tensors(StageLayout& layout) {
  const LayeredModel& model = layout.model;
  std::unordered_map<std::string, int> index;
  const auto add = [&](ModelTensor tensor) {
    index[tensor.name] = static_cast<int>(layout.tensors.size());
    layout.tensors.push_back(std::move(tensor));
  };
  const auto numbers = [&](const std::vector<std::string>& names) {
    std::vector<int> result;
    for (const std::string& name : names) result.push_back(index.at(name));
    return result;
  };
  for (std::size_t f = 0; f < model.fields.size(); ++f)
    add({.name = model.fields[f].name, .field = static_cast<int>(f)});
  for (std::size_t l = 0; l < model.layers.size(); ++l) {
    layout.reads.push_back(numbers(model.layers[l].inputs));
    const std::vector<std::string> outputs = model.layers[l].output_names();
    for (const std::string& name : outputs) add({.name = name, .layer = static_cast<int>(l)});
    layout.makes.push_back(numbers(outputs));
  }
  for (const NamedHead& head : model.heads) layout.head_reads.push_back(numbers(head.inputs));
}

/// Returns for each tensor 1 if it depends on a trained layer, directly or through other layers, else 0.
std::vector<char> made_by_trained(const StageLayout& layout) {
  std::vector<char> result(layout.tensors.size(), 0);
  for (std::size_t l = 0; l < layout.reads.size(); ++l) {
    const bool trained = !layout.model.layers[l].frozen ||
                         std::ranges::any_of(layout.reads[l], [&](int t) { return result[t] != 0; });
    for (int t : layout.makes[l]) result[t] = trained;
  }
  return result;
}

/// Finds the tensors that need a gradient: they are differentiable, depend on a trained layer, and a head
/// depends on them through such tensors.
void find_gradients(StageLayout& layout) {
  const std::vector<char> trained = made_by_trained(layout);
  const auto want = [&](const std::vector<int>& tensors) {
    for (int t : tensors) {
      ModelTensor& tensor = layout.tensors[t];
      tensor.wants_gradient = tensor.spec.differentiable && trained[t];
    }
  };
  for (const auto& reads : layout.head_reads) want(reads);
  for (std::size_t l = layout.reads.size(); l-- > 0;) {
    if (std::ranges::any_of(layout.makes[l], [&](int t) { return layout.tensors[t].wants_gradient; }))
      want(layout.reads[l]);
  }
}

/// Places all heads in the last stage, so that their sums are on one stage. Tensors that they read from
/// earlier stages are sent to it.
void place_heads(StageLayout& layout) {
  layout.stage_of_head.assign(layout.model.heads.size(), layout.num_stages() - 1);
}

/// Lists the tensors that are sent between stages. Returns an error if a layer reads a tensor that only a
/// later stage computes.
Status find_crossings(StageLayout& layout) {
  const auto num_layers = static_cast<int>(layout.model.layers.size());
  std::set<std::tuple<int, int, int>> crossings;              // (from, to, tensor)
  std::vector<std::vector<int>> uses(layout.tensors.size());  // readers, ascending
  const auto stage_of_reader = [&](int reader) {
    return reader < num_layers ? layout.stage_of_layer[reader] : layout.stage_of_head[reader - num_layers];
  };
  for (int reader = 0; reader < num_layers + static_cast<int>(layout.model.heads.size()); ++reader) {
    const auto& reads = reader < num_layers ? layout.reads[reader] : layout.head_reads[reader - num_layers];
    for (int t : reads) {
      const ModelTensor& tensor = layout.tensors[t];
      if (tensor.layer < 0) continue;
      const int from = layout.stage_of_layer[tensor.layer], to = stage_of_reader(reader);
      if (from > to) {
        return Problem{"plan",
                       "layer " + layout.model.layers[reader].name + " in stage " + std::to_string(to) +
                           " needs " + tensor.name + " of the later stage " + std::to_string(from),
                       "put layers into stages in execution order"};
      }
      if (from < to) crossings.insert({from, to, t});
      uses[t].push_back(reader);
    }
  }
  for (auto [from, to, t] : crossings) {
    Crossing crossing{.tensor = t,
                      .from = StageId(from),
                      .to = StageId(to),
                      .has_gradient = layout.tensors[t].wants_gradient};
    int last_elsewhere = -1;
    for (int use : uses[t]) {
      if (stage_of_reader(use) == to)
        crossing.uses.insert(crossing.uses.begin(), use);
      else
        last_elsewhere = use;
    }
    crossing.summed = crossing.uses.back() > last_elsewhere;
    layout.crossings.push_back(std::move(crossing));
    const StageLink link{StageId(from), StageId(to)};
    if (layout.links.empty() || !(layout.links.back() == link)) layout.links.push_back(link);
  }
  return Ok{};
}

void find_ties(StageLayout& layout) {
  for (std::size_t l = 0; l < layout.model.layers.size(); ++l) {
    for (const auto& [own, owner] : layout.model.layers[l].tied) {
      const auto place = find_parameter(layout.model, owner);
      const int from = layout.stage_of_layer[place->layer], to = layout.stage_of_layer[l];
      if (from != to) layout.ties.push_back({owner, static_cast<int>(l), StageId(from), StageId(to)});
    }
  }
}

}  // namespace

std::vector<char> StageLayout::fields_of(StageId stage) const {
  std::vector<char> result(model.fields.size(), 0);
  const auto mark = [&](const std::vector<int>& tensors) {
    for (int t : tensors) {
      if (const int field = this->tensors[t].field; field >= 0) result[field] = 1;
    }
  };
  for (int layer : layers[stage.value]) mark(reads[layer]);
  for (std::size_t h = 0; h < stage_of_head.size(); ++h) {
    if (stage_of_head[h] == stage.value) mark(head_reads[h]);
  }
  return result;
}

Result<StageLayout> make_layout(const LayeredModel& model, const Plan& plan, int microbatch_size,
                                Precision precision) {
  if (Problems problems = validate(model); !problems.empty()) return problems;
  if (Problems problems = validate(plan, model.name, model.layer_names()); !problems.empty()) return problems;
  StageLayout layout{
      .model = model, .nominal = model.nominal_extent(microbatch_size), .lower = lower_of(precision)};
  std::unordered_map<std::string, int> layer_index;
  for (int i = 0; i < static_cast<int>(model.layers.size()); ++i) layer_index[model.layers[i].name] = i;
  layout.stage_of_layer.assign(model.layers.size(), -1);
  for (int s = 0; s < plan.num_stages(); ++s) {
    auto& members = layout.layers.emplace_back();
    layout.recomputes.push_back(plan.stages[s].recompute);
    for (const std::string& name : plan.stages[s].layers) {
      members.push_back(layer_index.at(name));
      layout.stage_of_layer[members.back()] = s;
    }
    std::ranges::sort(members);
  }
  number_tensors(layout);
  try {
    std::vector<TensorSpec> specs = infer_specs(layout, layout.nominal);
    for (std::size_t i = 0; i < specs.size(); ++i) layout.tensors[i].spec = std::move(specs[i]);
  } catch (const ConfigError& error) {
    return Problem{"model " + model.name, error.what(), error.hint()};
  }
  find_gradients(layout);
  place_heads(layout);
  if (Status found = find_crossings(layout); !found) return found.problems();
  find_ties(layout);
  layout.joins_messages = plan.schedule == ScheduleKind::SpreadTables;
  for (const Turn& turn : model.turns) {
    Result<StageLayout> of_turn = make_layout(turn.model, plan, microbatch_size, precision);
    if (!of_turn) return of_turn.problems();
    layout.turns.push_back(*std::move(of_turn));
  }
  return layout;
}

std::vector<Shape> tensor_shapes(const StageLayout& layout, const BatchExtent& extent) {
  std::vector<Shape> shapes;
  for (TensorSpec& spec : infer_specs(layout, extent)) shapes.push_back(std::move(spec.shape));
  return shapes;
}

Problems untrainable_layers(const StageLayout& layout, const std::vector<char>& joined) {
  Problems result;
  int problems = 0;
  for (std::size_t l = 0; l < layout.reads.size(); ++l) {
    if (joined[layout.stage_of_layer[l]]) continue;
    std::vector<Shape> inputs;
    for (int tensor : layout.reads[l]) inputs.push_back(layout.tensors[tensor].spec.shape);
    const NamedLayer& named = layout.model.layers[l];
    const std::string problem = named.layer->training_problem(inputs);
    if (problem.empty() || ++problems > 1) continue;
    result.push_back({"model " + layout.model.name + ", layer " + named.name, problem, kMoreValues});
  }
  if (problems > 1) result.front().what += "; so do " + std::to_string(problems - 1) + " more layers";
  return result;
}

const std::vector<Shape>& ShapeCache::of(const BatchExtent& extent) {
  if (last_shapes_ && last_.samples == extent.samples && last_.lengths == extent.lengths)
    return *last_shapes_;
  const std::pair key{extent.samples, extent.lengths};
  auto found = known_.find(key);
  if (found == known_.end()) found = known_.emplace(key, tensor_shapes(layout_, extent)).first;
  last_ = extent;
  last_shapes_ = &found->second;
  return found->second;
}

PipelineShape shape_of(const Plan& plan, const StageLayout& layout, int microbatches) {
  PipelineShape shape = shape_of(plan, microbatches);
  shape.links = layout.links;
  return shape;
}

}  // namespace millrace
