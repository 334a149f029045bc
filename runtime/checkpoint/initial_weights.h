// Initial weights from a safetensors file with torchvision's names, or from a checkpoint of any run and plan.
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

/// One file, or the shards of a checkpoint. A checkpoint's other tensors, such as rule state and stashed
/// versions, are ignored: their names contain a slash.
using WeightFiles = std::vector<const SafetensorsFile*>;

/// Opened weights at a path. Movable, not copyable: files() refers to it.
class OpenedWeights {
 public:
  /// `path` is a safetensors file, or a path that open_checkpoint() accepts: an output folder, a folder of
  /// checkpoints, a checkpoint. Returns the errors of the file or of the checkpoint.
  static Result<OpenedWeights> open(const std::string& path);
  WeightFiles files() const;
  /// Returns the path of the weights' file, or of the chosen checkpoint.
  const std::string& path() const { return checkpoint_ ? checkpoint_->path : file_->path(); }
  /// Hashes a checkpoint's shards. A single file has no recorded hash.
  Problems verify() const { return checkpoint_ ? checkpoint_->verify() : Problems{}; }

 private:
  std::optional<SafetensorsFile> file_;
  std::optional<Checkpoint> checkpoint_;
};

/// The location of a tensor: a file and the tensor's name in it.
struct WeightPlace {
  const SafetensorsFile* file = nullptr;
  std::string name;
};

/// Finds weights by a model's names for them, ignoring the wrappers of both (Unwrapping). Files must outlive
/// the object.
class WeightNames {
 public:
  /// `own` has the names of the whole model.
  WeightNames(const WeightFiles& files, const std::vector<std::string>& own);
  std::optional<WeightPlace> find(const std::string& name) const;

 private:
  Unwrapping own_;
  std::map<std::string, WeightPlace> places_;  ///< by the name in the file, and without wrappers
};

/// Returns the names that a weight may have: the model's own first, then those in another program's
/// state_dict.
std::vector<std::string> names_of_weight(const NamedLayer& layer, const ParameterSpec& spec);

/// Returns the type that the weight has in files: int64 for a counter, else that of its value or float32.
at::ScalarType stored_type(const ParameterSpec& spec);

/// Returns the tensor at `places`, which must not be empty. They are names of one weight: throws
/// CheckpointError if they hold different values.
at::Tensor read_weight(const std::vector<WeightPlace>& places);

/// Returns the location of a weight's running average (`train --ema`), which evaluations use; nothing if its
/// run had none.
std::optional<WeightPlace> average_of(const WeightPlace& weight);

/// Compares names, shapes and types of `files` with those of `model`; it reads only the headers. Every tensor
/// of `model` must be in `files`, and `files` may have no others. Any floating type is accepted for any
/// other. Names that match one of `left_out` (* and ? as in file names) are excepted; the model's tensors
/// with such names keep their initial values. A weight may have any of its names (names_of_weight), or
/// several. num_batches_tracked may be absent. Returns all errors at once, each with file and name. A pattern
/// without a match is an error, too.
Problems check_weights(const WeightFiles& files, const LayeredModel& model,
                       const std::vector<std::string>& left_out);

/// Which weights of a checkpoint are loaded if its run had an average of them (`train --ema`).
enum class WeightsOf {
  Training,   ///< the trained weights
  Evaluation  ///< the average, which that run's evaluations used
};

/// Copies the tensors that `files` have for this stage of `model`; others are unchanged. Call check_weights()
/// first. float16 and bfloat16 become float32 exactly; float64 is rounded, with a log message. Throws
/// CheckpointError if names of one weight have different values, or a float64 is too large for float32.
void load_weights(const WeightFiles& files, const LayeredModel& model,
                  const std::vector<std::string>& left_out, ParameterStore& store,
                  WeightsOf which = WeightsOf::Training);

}  // namespace millrace
