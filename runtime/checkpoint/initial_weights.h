// Weights to start from: a safetensors file with torchvision's names, or a checkpoint of any run and plan.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/model/layered_model.h"
#include "runtime/saved/wrapped_names.h"
#include "runtime/stage/parameter_store.h"

namespace millrace {

/// One file, or the shards of a checkpoint. A checkpoint's other tensors do not count: names with a slash,
/// such as rule state and stashed versions.
using WeightFiles = std::vector<const SafetensorsFile*>;

/// Weights at a path, open. Moves, does not copy: files() refers to it.
class OpenedWeights {
 public:
  /// `path` is a safetensors file, or what open_checkpoint() takes: an output folder, a folder of
  /// checkpoints, a checkpoint. Problems: those of the file or of the checkpoint.
  static Result<OpenedWeights> open(const std::string& path);
  WeightFiles files() const;
  /// Returns the file of the weights, or the checkpoint that was chosen.
  const std::string& path() const { return checkpoint_ ? checkpoint_->path : file_->path(); }
  /// Hashes a checkpoint's shards. A file by itself has no hash.
  Problems verify() const { return checkpoint_ ? checkpoint_->verify() : Problems{}; }

 private:
  std::optional<SafetensorsFile> file_;
  std::optional<Checkpoint> checkpoint_;
};

/// The place of a tensor: a file and the tensor's name in it.
struct WeightPlace {
  const SafetensorsFile* file = nullptr;
  std::string name;
};

/// Finds weights by the names that a model has for them, without the wrappers of either (Unwrapping). Files
/// must outlive the object.
class WeightNames {
 public:
  /// `own` has the names of the whole model.
  WeightNames(const WeightFiles& files, const std::vector<std::string>& own);
  std::optional<WeightPlace> find(const std::string& name) const;

 private:
  Unwrapping own_;
  std::map<std::string, WeightPlace> places_;  ///< by the name in the file, and without wrappers
};

/// Returns the names that a weight may have: the model's own first, then those in the state_dict of another
/// program.
std::vector<std::string> names_of_weight(const NamedLayer& layer, const ParameterSpec& spec);

/// Returns the type that the weight has in files: int64 for a counter, else that of its value or float32.
at::ScalarType stored_type(const ParameterSpec& spec);

/// Returns the tensor at `places`, of which there is at least one. They are names of one weight: throws
/// CheckpointError if they hold different values.
at::Tensor read_weight(const std::vector<WeightPlace>& places);

/// Returns the place of a weight's running average (`train --ema`), which evaluations take; nothing: its run
/// had none.
std::optional<WeightPlace> average_of(const WeightPlace& weight);

/// Compares names, shapes and types of `files` with those of `model`; it reads only the headers. Every tensor
/// of `model` must be in `files`, and `files` may have no others. Any floating type stands for any other.
/// Names that match one of `left_out` (* and ? as in file names) are excepted; the model's tensors of such
/// names keep their initial values. A weight may have any of its names (names_of_weight), or several.
/// num_batches_tracked may be absent. Returns all problems at once, each with file and name; a pattern that
/// matches nothing is one too.
Problems check_weights(const WeightFiles& files, const LayeredModel& model,
                       const std::vector<std::string>& left_out);

/// The weights of a checkpoint that are meant, where its run had an average of them (`train --ema`).
enum class WeightsOf {
  Training,   ///< those that are trained on
  Evaluation  ///< the average, as the evaluations of that run took it
};

/// Copies the tensors that `files` have for this stage of `model`; others stay as they are. Call
/// check_weights() first. float16 and bfloat16 become float32 exactly; float64 is rounded, and the log says
/// so. Throws CheckpointError if names of one weight have different values, or a float64 is too large for
/// float32.
void load_weights(const WeightFiles& files, const LayeredModel& model,
                  const std::vector<std::string>& left_out, ParameterStore& store,
                  WeightsOf which = WeightsOf::Training);

}  // namespace millrace
