// A trained model that computes: what its heads would judge, without labels.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/checkpoint/initial_weights.h"
#include "runtime/device/device.h"
#include "runtime/model/layered_model.h"
#include "runtime/rules/precision.h"

namespace millrace {

struct PredictorOptions {
  Precision precision = Precision::Float32;  ///< that of the training, for its bits
  std::shared_ptr<Device> device{};          ///< null: the CPU
  /// Patterns of names that may be missing or too many (check_weights). Only for weights of a file.
  std::vector<std::string> ignored{};
};

/// A model of one job with its weights, in this process. It computes as an evaluation does: the same batch
/// gives the same bits on the CPU. Not thread-safe. Constructors throw ConfigError if the model is wrong, and
/// CheckpointError if the weights do not fit it.
class Predictor {
 public:
  /// Takes weights in memory by name, such as Trainer::weights(). Every parameter and buffer of the model
  /// must be there, and nothing else. They are copied.
  Predictor(LayeredModel model, const NamedTensors& weights, const PredictorOptions& options = {});
  /// Takes the weights of a file or a checkpoint, which are copied.
  Predictor(LayeredModel model, const OpenedWeights& weights, const PredictorOptions& options = {});
  ~Predictor();
  Predictor(Predictor&&) noexcept;

  const LayeredModel& model() const;
  /// Returns which fields of a batch forward() needs, by index in LayeredModel::fields: those that layers
  /// read. Labels, which only heads read, are not among them.
  const std::vector<char>& reads() const;
  /// Computes a batch. Returns for each head the first tensor that it reads, floating ones in float32 at the
  /// least: for a cross-entropy the scores [B, C]. `batch` has the fields of reads(), in the places that
  /// LayeredModel::fields has for them; further ones may be undefined or absent. States that layers carry
  /// begin empty. Throws DataError for a field that is missing, of another shape or outside its limit.
  std::vector<at::Tensor> forward(const Batch& batch);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace
