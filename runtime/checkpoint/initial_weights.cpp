#include "runtime/checkpoint/initial_weights.h"

#include <fnmatch.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/checkpoint/job_checkpoints.h"

namespace millrace {
namespace {

// errors of one kind in a message: another model lacks hundreds of tensors
constexpr std::size_t kMostNamed = 5;

bool matches(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

bool is_left_out(const std::vector<std::string>& patterns, const std::string& name) {
  return std::ranges::any_of(patterns, [&](const std::string& p) { return matches(p, name); });
}

bool is_weight(const std::string& name) {
  return name.find('/') == std::string::npos;
}

/// Returns the pattern of a layer's names: "fc.weight" -> "fc.*".
std::string layer_pattern(const std::string& name) {
  return name.substr(0, name.rfind('.')) + ".*";
}

/// Returns whether a tensor of a file can be loaded into one of the model: equal types, or both floating.
bool fits(at::ScalarType there, at::ScalarType here) {
  return there == here || (at::isFloatingType(there) && at::isFloatingType(here));
}

std::vector<std::string> weights_in(const WeightFiles& files) {
  std::vector<std::string> names;
  for (const SafetensorsFile* file : files)
    std::ranges::copy_if(file->names(), std::back_inserter(names), is_weight);
  return names;
}

struct Wanted {
  Shape shape;
  at::ScalarType type = at::kFloat;
  /// places in the files; if there are several names, the model's own is first
  std::vector<WeightPlace> places{};
};

/// The tensors of a state_dict and their locations in the files, by name; a tied parameter has its owner's
/// name.
using StateDict = std::map<std::string, Wanted>;

StateDict state_dict_of(const LayeredModel& model, const WeightFiles& files) {
  StateDict result;
  std::map<std::string, std::vector<std::string>> names;
  std::vector<std::string> own;
  for (const NamedLayer& layer : model.layers) {
    for (const ParameterSpec& spec : layer.layer->parameters()) {
      if (layer.is_tied(spec)) continue;
      own.push_back(layer.parameter_name(spec));
      names[own.back()] = names_of_weight(layer, spec);
      result[own.back()] = {spec.shape, stored_type(spec)};
    }
  }
  const WeightNames find(files, own);
  for (auto& [name, wanted] : result) {
    for (const std::string& other : names[name]) {
      if (other != name && result.contains(other)) continue;  // it is another weight's own name
      if (const auto place = find.find(other)) wanted.places.push_back(*place);
    }
  }
  return result;
}

/// Adds the first few of `more`, and the total number if there are more.
void add_limited(Problems& problems, const Problems& more, const std::string& what) {
  for (std::size_t i = 0; i < std::min(more.size(), kMostNamed); ++i) problems.push_back(more[i]);
  if (more.size() > kMostNamed)
    problems.push_back({more.front().where, std::to_string(more.size()) + " " + what + " in all", {}});
}

/// A convolution that differs only in its kernel belongs to a model with another structure.
std::string hint_of_shapes(const std::string& name, const Shape& there, const Shape& wanted) {
  if (wanted.size() == 4 && there.size() == 4 && there[0] == wanted[0] && there[1] == wanted[1])
    return "the file's model has another form: ResNets take CIFAR's 3x3 stem up to 64 pixels, --stem "
           "imagenet "
           "has the 7x7 one at any --image-size and --stem cifar the 3x3 one";
  return "--init-from-ignore '" + layer_pattern(name) +
         "' starts it at random (a classifier of other classes); for the model as it was trained give its "
         "options, such as --classes; the form of vgg16 and resnets goes by --image-size";
}

}  // namespace

Result<OpenedWeights> OpenedWeights::open(const std::string& path) {
  OpenedWeights opened;
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    Result<Checkpoint> checkpoint = open_checkpoint(path);
    if (!checkpoint) return checkpoint.problems();
    if (const Status one = of_one_job(*checkpoint, path); !one) return one.problems();
    opened.checkpoint_.emplace(*std::move(checkpoint));
    return opened;
  }
  Result<SafetensorsFile> file = SafetensorsFile::open(path);
  if (!file) return file.problems();
  opened.file_.emplace(*std::move(file));
  return opened;
}

WeightFiles OpenedWeights::files() const {
  if (!checkpoint_) return {&*file_};
  WeightFiles files;
  for (const SafetensorsFile& shard : checkpoint_->shards) files.push_back(&shard);
  return files;
}

WeightNames::WeightNames(const WeightFiles& files, const std::vector<std::string>& own) : own_(own) {
  const Unwrapping there(weights_in(files));
  for (const auto& unwrapped : {false, true})
    for (const SafetensorsFile* file : files)
      for (const std::string& name : file->names())
        if (is_weight(name)) places_.try_emplace(unwrapped ? there(name) : name, WeightPlace{file, name});
}

std::optional<WeightPlace> WeightNames::find(const std::string& name) const {
  auto found = places_.find(own_(name));
  if (found == places_.end()) found = places_.find(name);  // a name of another program may be wrapped itself
  return found == places_.end() ? std::nullopt : std::optional(found->second);
}

std::vector<std::string> names_of_weight(const NamedLayer& layer, const ParameterSpec& spec) {
  std::vector<std::string> names{layer.parameter_name(spec)};
  names.insert(names.end(), spec.also.begin(), spec.also.end());
  ParameterSpec other = spec;
  for (const std::string& name : spec.elsewhere) {
    other.name = name;
    names.push_back(layer.parameter_name(other));
  }
  return names;
}

at::ScalarType stored_type(const ParameterSpec& spec) {
  if (spec.is_counter) return at::kLong;
  return spec.is_buffer && spec.value.defined() ? spec.value.scalar_type() : at::kFloat;
}

std::optional<WeightPlace> average_of(const WeightPlace& weight) {
  WeightPlace average{weight.file, "rule/ema/" + weight.name};
  if (!weight.file->contains(average.name)) return std::nullopt;
  return average;
}

at::Tensor read_weight(const std::vector<WeightPlace>& places) {
  const WeightPlace& first = places.front();
  at::Tensor value = first.file->tensor(first.name);
  for (std::size_t i = 1; i < places.size(); ++i) {
    const at::Tensor other = places[i].file->tensor(places[i].name);
    if (other.sizes() != value.sizes() || other.scalar_type() != value.scalar_type() ||
        std::memcmp(other.const_data_ptr(), value.const_data_ptr(), value.nbytes()) != 0)
      throw CheckpointError(first.file->path() + ": " + first.name + " and " + places[i].name +
                                " are names of one weight, but their values differ",
                            "leave out the name whose values are not meant");
  }
  return value;
}

Problems check_weights(const WeightFiles& files, const LayeredModel& model,
                       const std::vector<std::string>& left_out) {
  Problems missing, extra, unlike, unused;
  const std::string first = files.empty() ? "" : files.front()->path();
  const StateDict ours = state_dict_of(model, files);
  std::vector<std::string> in_model, not_ours;
  std::set<std::string> known;
  for (const auto& [name, wanted] : ours) {
    in_model.push_back(name);
    for (const WeightPlace& place : wanted.places) known.insert(place.name);
  }
  const std::vector<std::string> in_files = weights_in(files);
  std::ranges::copy_if(in_files, std::back_inserter(not_ours),
                       [&](const std::string& name) { return !known.contains(name); });
  for (const auto& [name, wanted] : ours) {
    if (counts_updates(name) || is_left_out(left_out, name)) continue;
    if (wanted.places.empty()) {
      const auto near =
          missing.size() < kMostNamed ? nearest_name(name, not_ours) : std::optional<std::string>();
      missing.push_back({first, "has no tensor " + name,
                         near ? "it has " + *near
                              : "--init-from-ignore '" + layer_pattern(name) + "' starts it at random"});
    }
    for (const auto& [file, there] : wanted.places) {
      if (is_left_out(left_out, there)) continue;
      if (!fits(file->type(there), wanted.type)) {
        unlike.push_back({file->path(),
                          there + " is of " + safetensors_name(file->type(there)) + ", the model's is of " +
                              safetensors_name(wanted.type),
                          std::string("write it as ") + safetensors_name(wanted.type)});
      } else if (file->shape(there) != wanted.shape) {
        std::ostringstream text;
        text << there << " has shape " << c10::IntArrayRef(file->shape(there)) << ", the model has "
             << c10::IntArrayRef(wanted.shape);
        unlike.push_back({file->path(), text.str(), hint_of_shapes(name, file->shape(there), wanted.shape)});
      }
    }
  }
  for (const SafetensorsFile* file : files) {
    for (const std::string& name : file->names()) {
      if (!is_weight(name) || counts_updates(name) || known.contains(name) || is_left_out(left_out, name))
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
  if (known.empty() && !missing.empty() && !in_files.empty())
    return {{first,
             "has none of the " + std::to_string(ours.size()) + " tensors of " + model.name +
                 ": its first is " + in_files.front() + ", the model's is " + in_model.front(),
             "give weights of this model; where only the names differ, rename them in Python before saving"}};
  Problems problems;
  add_limited(problems, missing, "tensors are missing");
  add_limited(problems, unlike, "tensors are of another form");
  add_limited(problems, extra, "tensors are too many");
  append(problems, unused);
  return problems;
}

void load_weights(const WeightFiles& files, const LayeredModel& model,
                  const std::vector<std::string>& left_out, ParameterStore& store, WeightsOf which) {
  const StateDict there = state_dict_of(model, files);
  int rounded = 0;
  const auto load = [&](const std::string& full_name, at::Tensor target) {
    const std::string name = full_name.substr(full_name.find('/') + 1);  // without the job, in a job array
    if (is_left_out(left_out, name)) return;
    const auto found = there.find(name);
    if (found == there.end()) return;
    std::vector<WeightPlace> places = found->second.places;
    std::erase_if(places, [&](const WeightPlace& place) { return is_left_out(left_out, place.name); });
    if (places.empty()) return;
    const auto average = which == WeightsOf::Evaluation ? average_of(places.front()) : std::nullopt;
    if (average) places = {*average};
    const auto& [file, first] = places.front();
    // check_weights() has checked all other tensors. The counter of another program may have any form or be
    // absent.
    if (counts_updates(name) &&
        (file->shape(first) != target.sizes().vec() || file->type(first) != at::kLong))
      return;
    const at::Tensor value = read_weight(places);
    target.copy_(value);  // exact, but for float64
    if (value.scalar_type() != at::kDouble || target.scalar_type() == at::kDouble) return;
    ++rounded;
    if (!non_finite_in({{first, target}}).empty() && non_finite_in({{first, value}}).empty())
      throw CheckpointError(file->path() + ": " + first + " holds a number that is too large for float32",
                            "scale it, or train in another program");
  };
  for (auto& [name, tensor] : stage_weights(store)) load(name, tensor);
  for (const TiedUse& use : store.tied()) {
    if (use.mirror.defined()) load(use.owner, use.mirror);
  }
  if (rounded > 0)
    log_info(std::to_string(rounded) + " tensors of " + files.front()->path() +
             " are float64 and were rounded to float32");
}

}  // namespace millrace
