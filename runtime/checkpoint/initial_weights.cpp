#include "runtime/checkpoint/initial_weights.h"

#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "runtime/base/json.h"
#include "runtime/checkpoint/checkpoint.h"

namespace millrace {
namespace {

constexpr std::size_t kMostNamed = 5;  // of one kind in messages: another model lacks hundreds

bool matches(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

bool is_left_out(const std::vector<std::string>& patterns, const std::string& name) {
  return std::ranges::any_of(patterns, [&](const std::string& p) { return matches(p, name); });
}

bool is_weight(const std::string& name) {
  return name.find('/') == std::string::npos;
}

const SafetensorsFile* file_of(const WeightFiles& files, const std::string& name) {
  const auto found = std::ranges::find_if(files, [&](const auto* file) { return file->contains(name); });
  return found == files.end() ? nullptr : *found;
}

/// "fc.weight" -> "fc.*".
std::string layer_pattern(const std::string& name) {
  return name.substr(0, name.rfind('.')) + ".*";
}

bool counts_batches(const std::string& name) {
  return name == "num_batches_tracked" || name.ends_with(".num_batches_tracked");
}

struct Wanted {
  Shape shape;
  at::ScalarType type = at::kFloat;
};

/// The tensors of a state_dict.
struct StateDict {
  std::map<std::string, Wanted> wanted;  ///< the owner's name for tied ones
  std::set<std::string> aliases;         ///< names under which `wanted` may be there once more

  bool contains(const std::string& name) const { return wanted.contains(name) || aliases.contains(name); }
};

StateDict state_dict_of(const LayeredModel& model) {
  StateDict result;
  for (const NamedLayer& layer : model.layers) {
    for (const ParameterSpec& spec : layer.layer->parameters()) {
      if (layer.is_tied(spec)) continue;
      const at::ScalarType type = spec.is_counter                          ? at::kLong
                                  : spec.is_buffer && spec.value.defined() ? spec.value.scalar_type()
                                                                           : at::kFloat;
      result.wanted[layer.parameter_name(spec)] = {spec.shape, type};
      result.aliases.insert(spec.also.begin(), spec.also.end());
    }
  }
  return result;
}

/// The first few, and how many there are.
void add_limited(Problems& problems, const Problems& more, const std::string& what) {
  for (std::size_t i = 0; i < std::min(more.size(), kMostNamed); ++i) problems.push_back(more[i]);
  if (more.size() > kMostNamed)
    problems.push_back({more.front().where, std::to_string(more.size()) + " " + what + " in all", {}});
}

}  // namespace

Problems check_weights(const WeightFiles& files, const LayeredModel& model,
                       const std::vector<std::string>& left_out) {
  Problems missing, extra, unlike, unused;
  const std::string first = files.empty() ? "" : files.front()->path();
  const StateDict ours = state_dict_of(model);
  std::vector<std::string> in_files, in_model, not_ours;
  for (const auto& [name, tensor] : ours.wanted) in_model.push_back(name);
  for (const SafetensorsFile* file : files) {
    for (const std::string& name : file->names()) {
      if (!is_weight(name)) continue;
      in_files.push_back(name);
      if (!ours.contains(name)) not_ours.push_back(name);
    }
  }
  for (const auto& [name, tensor] : ours.wanted) {
    if (counts_batches(name) || is_left_out(left_out, name)) continue;
    const SafetensorsFile* file = file_of(files, name);
    if (!file) {
      const auto near =
          missing.size() < kMostNamed ? nearest_name(name, not_ours) : std::optional<std::string>();
      missing.push_back({first, "has no tensor " + name,
                         near ? "it has " + *near
                              : "--init-from-ignore '" + layer_pattern(name) + "' starts it at random"});
    } else if (file->type(name) != tensor.type) {
      unlike.push_back({file->path(),
                        name + " is of " + safetensors_name(file->type(name)) + ", the model's is of " +
                            safetensors_name(tensor.type),
                        std::string("write it as ") + safetensors_name(tensor.type)});
    } else if (file->shape(name) != tensor.shape) {
      std::ostringstream text;
      text << name << " has shape " << c10::IntArrayRef(file->shape(name)) << ", the model has "
           << c10::IntArrayRef(tensor.shape);
      unlike.push_back({file->path(), text.str(),
                        "--init-from-ignore '" + layer_pattern(name) +
                            "' starts it at random (a classifier of other classes)"});
    }
  }
  for (const SafetensorsFile* file : files) {
    for (const std::string& name : file->names()) {
      if (!is_weight(name) || counts_batches(name) || ours.contains(name) || is_left_out(left_out, name))
        continue;
      extra.push_back({file->path(), "has " + name + ", which " + model.name + " has not",
                       "--init-from-ignore '" + layer_pattern(name) + "' leaves it out"});
    }
  }
  for (const std::string& pattern : left_out) {
    const auto match = [&](const std::string& name) { return matches(pattern, name); };
    if (std::ranges::none_of(in_model, match) && std::ranges::none_of(in_files, match))
      unused.push_back({"--init-from-ignore",
                        "'" + pattern + "' matches no tensor of the model or of " + first,
                        "names are those of the state_dict, e.g. '" +
                            (in_model.empty() ? "fc.*" : layer_pattern(in_model.back())) + "'"});
  }
  Problems problems;
  add_limited(problems, missing, "tensors are missing");
  add_limited(problems, unlike, "tensors are of another form");
  add_limited(problems, extra, "tensors are too many");
  append(problems, unused);
  return problems;
}

void load_weights(const WeightFiles& files, const std::vector<std::string>& left_out, ParameterStore& store) {
  const auto load = [&](const std::string& full_name, at::Tensor target) {
    const std::string name = full_name.substr(full_name.find('/') + 1);  // of a job array: without the job
    if (is_left_out(left_out, name)) return;
    const SafetensorsFile* file = file_of(files, name);
    if (!file) return;
    // check_weights holds all else; another writer's counter may be of any form, or not be there.
    if (counts_batches(name) && (file->shape(name) != target.sizes().vec() || file->type(name) != at::kLong))
      return;
    target.copy_(file->tensor(name));
  };
  for (auto& [name, tensor] : stage_weights(store)) load(name, tensor);
  for (const TiedUse& use : store.tied()) {
    if (use.mirror.defined()) load(use.owner, use.mirror);
  }
}

}  // namespace millrace
