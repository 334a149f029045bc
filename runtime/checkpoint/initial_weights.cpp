#include "runtime/checkpoint/initial_weights.h"

#include <fnmatch.h>

#include <algorithm>
#include <map>
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

struct Wanted {
  Shape shape;
  bool is_counter = false;
};

/// The tensors of a state_dict: the owner's name for tied ones.
std::map<std::string, Wanted> tensors_of(const LayeredModel& model) {
  std::map<std::string, Wanted> wanted;
  for (const NamedLayer& layer : model.layers) {
    for (const ParameterSpec& spec : layer.layer->parameters()) {
      const bool tied = std::ranges::any_of(layer.tied, [&](const auto& t) { return t.first == spec.name; });
      if (!tied) wanted[layer.parameter_name(spec)] = {spec.shape, spec.is_counter};
    }
  }
  return wanted;
}

/// The first few, and how many there are.
void add_limited(Problems& problems, const Problems& more, const std::string& what) {
  for (std::size_t i = 0; i < std::min(more.size(), kMostNamed); ++i) problems.push_back(more[i]);
  if (more.size() > kMostNamed)
    problems.push_back({more.front().where, std::to_string(more.size()) + " " + what + " in all", {}});
}

bool counts_batches(const std::string& name) {
  return name == "num_batches_tracked" || name.ends_with(".num_batches_tracked");
}

/// Whether a counter of the file can be taken: another writer's may be of any form.
bool fits(const SafetensorsFile& file, const std::string& name, const Shape& shape, bool is_counter) {
  return file.shape(name) == shape && file.is_float(name) != is_counter;
}

}  // namespace

Problems check_weights(const WeightFiles& files, const LayeredModel& model,
                       const std::vector<std::string>& left_out) {
  Problems missing, extra, unlike, unused;
  const std::string first = files.empty() ? "" : files.front()->path();
  const auto wanted = tensors_of(model);
  std::vector<std::string> in_files, in_model, not_ours;
  for (const auto& [name, tensor] : wanted) in_model.push_back(name);
  for (const SafetensorsFile* file : files) {
    for (const std::string& name : file->names()) {
      if (!is_weight(name)) continue;
      in_files.push_back(name);
      if (!wanted.contains(name)) not_ours.push_back(name);
    }
  }
  for (const auto& [name, tensor] : wanted) {
    if (tensor.is_counter || is_left_out(left_out, name)) continue;
    const SafetensorsFile* file = file_of(files, name);
    if (!file) {
      const auto near = nearest_name(name, not_ours);
      missing.push_back({first, "has no tensor " + name,
                         near ? "it has " + *near
                              : "--init-from-ignore '" + layer_pattern(name) + "' starts it at random"});
    } else if (!file->is_float(name)) {
      unlike.push_back({file->path(), name + " is not of F32, as the model has it", "write it as float32"});
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
      if (!is_weight(name) || counts_batches(name) || wanted.contains(name) || is_left_out(left_out, name))
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
  const auto load = [&](const std::string& name, at::Tensor target) {
    if (is_left_out(left_out, name)) return;
    const SafetensorsFile* file = file_of(files, name);
    if (!file) return;
    const bool is_counter = !target.is_floating_point();
    if (is_counter && !fits(*file, name, target.sizes().vec(), true)) return;
    target.copy_(file->tensor(name));
  };
  for (auto& [name, tensor] : stage_weights(store)) load(name, tensor);
  for (const TiedUse& use : store.tied()) {
    if (use.mirror.defined()) load(use.owner, use.mirror);
  }
}

}  // namespace millrace
