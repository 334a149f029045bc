#include "runtime/model/layered_model.h"

#include <algorithm>
#include <set>

#include "runtime/base/check.h"
#include "runtime/layers/job_array.h"
#include "runtime/model/turns.h"

namespace millrace {

bool NamedLayer::is_tied(const ParameterSpec& spec) const {
  return std::ranges::any_of(tied, [&](const auto& tie) { return tie.first == spec.name; });
}

std::string NamedLayer::parameter_name(const ParameterSpec& spec) const {
  if (spec.job < 0) return full_names ? spec.name : name + "." + spec.name;
  const std::string job = job_prefix(spec.job), own = spec.name.substr(job.size());
  return job + (full_names ? own : name + "." + own);
}

std::vector<std::string> LayeredModel::layer_names() const {
  std::vector<std::string> names;
  for (const NamedLayer& layer : layers) names.push_back(layer.name);
  return names;
}

std::int64_t LayeredModel::num_parameters() const {
  std::int64_t total = 0;
  for (const NamedLayer& layer : layers) {
    for (const ParameterSpec& spec : layer.layer->parameters()) {
      if (spec.is_buffer || layer.is_tied(spec)) continue;
      std::int64_t elements = 1;
      for (std::int64_t d : spec.shape) elements *= d;
      total += elements;
    }
  }
  return total;
}

const FieldSpec* LayeredModel::field(const std::string& name) const {
  const auto found = std::ranges::find(fields, name, &FieldSpec::name);
  return found == fields.end() ? nullptr : &*found;
}

Shape field_shape(const FieldSpec& field, const BatchExtent& extent) {
  Shape shape;
  for (std::int64_t d : field.shape) shape.push_back(d < 0 ? extent.lengths.at(-1 - d) : d);
  shape.insert(shape.begin() + field.batch_dimension, extent.samples);
  return shape;
}

BatchExtent LayeredModel::nominal_extent(std::int64_t samples) const {
  BatchExtent extent{.samples = samples};
  std::int64_t longest = 1;
  for (const Dimension& d : dimensions) {
    extent.lengths.push_back(d.nominal);
    longest = std::max(longest, d.nominal);
  }
  extent.counts.assign(counts.size(), samples * longest);
  return extent;
}

std::optional<ParameterPlace> find_parameter(const LayeredModel& model, const std::string& full_name) {
  for (std::size_t l = 0; l < model.layers.size(); ++l) {
    const NamedLayer& layer = model.layers[l];
    const std::size_t own = full_name.find('/') + 1;  // starts after the job's name, if there is one
    if (!layer.full_names && full_name.compare(own, layer.name.size() + 1, layer.name + ".") != 0) continue;
    const auto specs = layer.layer->parameters();
    for (std::size_t i = 0; i < specs.size(); ++i) {
      if (layer.parameter_name(specs[i]) == full_name && !layer.is_tied(specs[i]))
        return ParameterPlace{static_cast<int>(l), static_cast<int>(i)};
    }
  }
  return std::nullopt;
}

Problems validate(const LayeredModel& model) {
  Problems problems;
  const std::string where = "model " + model.name;
  std::set<std::string> known, layer_names;
  const auto add = [&](const std::string& tensor) {
    if (!known.insert(tensor).second)
      problems.push_back({where, "two tensors are called '" + tensor + "'", "give each another name"});
  };
  const auto check_inputs = [&](const std::string& reader, const std::vector<std::string>& inputs) {
    for (const std::string& name : inputs) {
      if (!known.contains(name))
        problems.push_back({where, reader + " reads '" + name + "', which nothing before it makes",
                            "name a field, or the output of an earlier layer"});
    }
  };
  for (const FieldSpec& field : model.fields) {
    add(field.name);
    for (std::int64_t d : field.shape) {
      if (d < 0 && static_cast<std::size_t>(-1 - d) >= model.dimensions.size())
        problems.push_back(
            {where, "field " + field.name + " has a dimension that the model does not declare", {}});
    }
  }
  for (const NamedLayer& layer : model.layers) {
    if (!layer_names.insert(layer.name).second)
      problems.push_back({where, "two layers are called '" + layer.name + "'", "give each another name"});
    check_inputs("layer " + layer.name, layer.inputs);
    for (const std::string& tensor : layer.output_names()) add(tensor);
    const auto specs = layer.layer->parameters();
    std::set<std::string> tied;
    for (const auto& [own, owner] : layer.tied) {
      if (!tied.insert(own).second)
        problems.push_back({where, "layer " + layer.name + " ties " + own + " twice, now to " + owner,
                            "a parameter has one owner: keep one of the ties"});
      const auto mine = std::ranges::find(specs, own, &ParameterSpec::name);
      const auto place = find_parameter(model, owner);
      if (mine == specs.end() || !place) {
        problems.push_back({where,
                            "layer " + layer.name + " ties " + own + " to " + owner + ", which is not there",
                            "an owner is a parameter that is not tied itself"});
        continue;
      }
      const ParameterSpec spec = model.layers[place->layer].layer->parameters()[place->spec];
      if (spec.shape != mine->shape || spec.is_buffer || mine->is_buffer)
        problems.push_back(
            {where, "layer " + layer.name + " ties " + own + " to " + owner + " of another shape", {}});
      if (spec.written || mine->written)
        problems.push_back({where,
                            "layer " + layer.name + " ties " + own + " to " + owner +
                                ", whose rows an embedding with a max_norm scales when it reads them",
                            "a matrix each, or no max_norm: the other stage would not see the scaled rows"});
    }
  }
  if (model.heads.empty()) problems.push_back({where, "has no head, so nothing to train", "add a loss"});
  std::set<std::string> head_names;
  for (const NamedHead& head : model.heads) {
    if (!head_names.insert(head.name).second)
      problems.push_back({where, "two heads are called '" + head.name + "'", "give each another name"});
    check_inputs("head " + head.name, head.inputs);
    const std::string weight = head.head->weight();
    if (weight != "samples" && std::ranges::find(model.counts, weight) == model.counts.end())
      problems.push_back(
          {where, "head " + head.name + " is weighted by '" + weight + "', which the model does not count",
           "name it in LayeredModel::counts"});
  }
  for (const Turn& turn : model.turns) {
    for (Problem& problem : validate(turn.model)) {
      problem.where += ", turn " + turn.name;
      problems.push_back(std::move(problem));
    }
  }
  append(problems, validate_turns(model));
  return problems;
}

LayeredModel classifier(std::string name, Shape sample_shape, std::int64_t classes) {
  return {.name = std::move(name),
          .fields = {{.name = "input", .shape = std::move(sample_shape)},
                     {.name = "target", .dtype = at::kLong, .limit = classes}}};
}

void end_in_cross_entropy(LayeredModel& model) {
  MILLRACE_CHECK(!model.layers.empty() && model.heads.empty());
  model.heads.push_back(
      {"loss", cross_entropy_head(), {model.layers.back().output_names().front(), "target"}});
}

}  // namespace millrace
