// Weights to start from: a safetensors file by torchvision's names, or a checkpoint of any run and plan.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/model/layered_model.h"
#include "runtime/stage/parameter_store.h"

namespace millrace {

/// One file, or the shards of a checkpoint. What a checkpoint keeps beside weights and buffers (names with a
/// slash: state of the rule, stashed versions) does not count.
using WeightFiles = std::vector<const SafetensorsFile*>;

/// A tensor of a file.
struct WeightPlace {
  const SafetensorsFile* file = nullptr;
  std::string name;
};

/// Finds weights by the names that a model has for them, also below "module.", which DataParallel and
/// DistributedDataParallel set before all of them. Files outlive it.
class WeightNames {
 public:
  /// `own`: names of the model, some of which may begin with "module." themselves.
  WeightNames(WeightFiles files, const std::vector<std::string>& own);
  std::optional<WeightPlace> find(const std::string& name) const;

 private:
  WeightFiles files_;
  std::string before_;  ///< what the files have before all names
};

/// The model's own name first, then those that it may have in the state_dict of another program.
std::vector<std::string> names_of_weight(const NamedLayer& layer, const ParameterSpec& spec);

/// The tensor; throws CheckpointError if the places, at least one, hold different values: names of one
/// weight.
at::Tensor read_weight(const std::vector<WeightPlace>& places);

/// Compares names, shapes and types only: nothing is read but the headers. Every tensor of `model` must be in
/// `files`, and nothing else, except for names that match one of `left_out` (* and ? as in file names): those
/// of the model keep their initial values. A weight may have any of its names (names_of_weight), or several.
/// num_batches_tracked may be there or not. Problems: all at once,
/// each with file and name; also a pattern that matches nothing.
Problems check_weights(const WeightFiles& files, const LayeredModel& model,
                       const std::vector<std::string>& left_out);

/// Copies what `files` have for this stage of `model`; the rest stays. Only after check_weights. Throws
/// CheckpointError where names of one weight have different values.
void load_weights(const WeightFiles& files, const LayeredModel& model,
                  const std::vector<std::string>& left_out, ParameterStore& store);

}  // namespace millrace
