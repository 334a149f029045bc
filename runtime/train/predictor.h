// Inference with a trained model: the inputs of its heads, without labels.
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
  Precision precision = Precision::Float32;  ///< the precision of the training, for its bits
  std::shared_ptr<Device> device{};          ///< null: the CPU
  /// Patterns of names that may be missing or superfluous (check_weights). Only for weights from a file.
  std::vector<std::string> ignored{};
};

/// A model of one job with its weights, in this process. It computes as an evaluation does: the same batch
/// gives the same bits on the CPU. Not thread-safe. Constructors throw ConfigError if the model is invalid,
/// and CheckpointError if the weights do not fit it.
class Predictor {
 public:
  /// Copies weights in memory by name, such as Trainer::weights(). They must include every parameter and
  /// buffer of the model, and nothing else.
  Predictor(LayeredModel model, const NamedTensors& weights, const PredictorOptions& options = {});
  /// Copies the weights of a file or a checkpoint.
  Predictor(LayeredModel model, const OpenedWeights& weights, const PredictorOptions& options = {});
  ~Predictor();
  Predictor(Predictor&&) noexcept;

  const LayeredModel& model() const;
  /// Returns which fields of a batch forward() needs, by index in LayeredModel::fields: those that layers
  /// read. Labels, which only heads read, are not included.
  const std::vector<char>& reads() const;
  /// Runs a batch. Returns for each head its first input tensor, in at least float32 if floating: for a
  /// cross-entropy the scores [B, C]. `batch` has the fields of reads(), at their indices in
  /// LayeredModel::fields; other fields may be undefined or absent. Carried states are initially empty.
  /// Throws DataError if a field is missing, has another shape or is outside its limit.
  std::vector<at::Tensor> forward(const Batch& batch);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace
