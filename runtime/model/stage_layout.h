// The connections between a plan's stages: which layer computes each tensor, which stages need it, and what
// is sent between them. It is derived once from the model and the plan. It is the same on every rank, so its
// indices can be used in message tags.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/model/layered_model.h"
#include "runtime/plan/plan.h"
#include "runtime/rules/precision.h"
#include "runtime/schedule/schedule.h"

namespace millrace {

/// A tensor of the model: a field of the batch, or an output of a layer.
struct ModelTensor {
  std::string name;
  int field = -1;   ///< index in the model's fields, or -1
  int layer = -1;   ///< index of the layer that computes it, or -1
  TensorSpec spec;  ///< for a microbatch of nominal extent; the dtype is the same for all
  /// The tensor is differentiable, and a head's loss depends on it: a reader gives it a gradient.
  bool wants_gradient = false;
};

/// A tensor that leaves its stage: computed in `from`, needed in the later stage `to`.
struct Crossing {
  int tensor = 0;  ///< index in StageLayout::tensors
  StageId from;
  StageId to;
  /// The layers and heads (num_layers + head) of `to` that read it, from the last to the first. A reader
  /// occurs once for each input that is this tensor.
  std::vector<int> uses;
  /// True if the returned gradient is the sum over `uses`. False if a layer of another stage reads the tensor
  /// after one of them. Then one gradient per use is sent, concatenated along dimension 0. The receiver adds
  /// them in the order of a single process, from the last reader to the first.
  bool summed = true;
  bool has_gradient = true;  ///< ModelTensor::wants_gradient

  int gradient_parts() const { return summed ? 1 : static_cast<int>(uses.size()); }
};

/// A parameter that a layer of one stage uses and a layer of another stage owns.
struct TieAcross {
  std::string owner;  ///< full name
  int layer = 0;      ///< the layer that uses it
  StageId owner_stage;
  StageId user_stage;
};

struct StageLayout {
  LayeredModel model;
  BatchExtent nominal;  ///< extent of a microbatch of nominal lengths
  /// The type in which layers with CastPolicy::Lower compute. kFloat: all layers compute in the run's
  /// precision.
  at::ScalarType lower = at::kFloat;
  std::vector<ModelTensor> tensors;          ///< fields first, then outputs in the order of layers
  std::vector<std::vector<int>> reads;       ///< by layer: its input tensors
  std::vector<std::vector<int>> makes;       ///< by layer: its output tensors
  std::vector<std::vector<int>> head_reads;  ///< by head: its input tensors
  std::vector<std::vector<int>> layers;      ///< by stage: indices into model.layers, ascending
  std::vector<int> stage_of_layer;
  std::vector<int> stage_of_head;
  std::vector<char> recomputes;     ///< by stage: whether its backward repeats its forward (PlanStage)
  std::vector<Crossing> crossings;  ///< sorted by (from, to, layer order)
  std::vector<StageLink> links;     ///< the distinct (from, to) pairs, sorted
  std::vector<TieAcross> ties;      ///< in the order of the layers that use them
  /// All tensors that one stage sends to another for a microbatch form one message. This is used for spread
  /// tables, where each rank sends the vectors of many tables. Other plans send few tensors, and avoid the
  /// copy.
  bool joins_messages = false;
  std::vector<StageLayout> turns;  ///< the layouts of the model's turns

  int num_stages() const { return static_cast<int>(layers.size()); }
  bool casts() const { return lower != at::kFloat; }
  /// Returns which batch fields the stage's layers and heads read: by index, 0 or 1.
  std::vector<char> fields_of(StageId stage) const;
};

/// Makes the layout. Returns an error if the model is invalid (validate), if the plan does not fit the model,
/// or if shapes do not fit each other.
Result<StageLayout> make_layout(const LayeredModel& model, const Plan& plan, int microbatch_size,
                                Precision precision = Precision::Float32);

/// Returns the shapes of all tensors for a microbatch of `extent`, by index in StageLayout::tensors. Throws
/// ConfigError if shapes do not fit.
std::vector<Shape> tensor_shapes(const StageLayout& layout, const BatchExtent& extent);

/// Returns one error if layers cannot be trained on microbatches of the nominal extent
/// (Layer::training_problem). `joined` specifies by stage whether its replicas share their statistics; the
/// layers of such a stage are not checked.
Problems untrainable_layers(const StageLayout& layout, const std::vector<char>& joined);

/// Caches the shapes of the extents that it has seen. Not thread-safe.
class ShapeCache {
 public:
  explicit ShapeCache(const StageLayout& layout) : layout_(layout) {}
  const std::vector<Shape>& of(const BatchExtent& extent);

 private:
  const StageLayout& layout_;
  std::map<std::pair<std::int64_t, std::vector<std::int64_t>>, std::vector<Shape>> known_;
  BatchExtent last_{.samples = -1};
  const std::vector<Shape>* last_shapes_ = nullptr;
};

/// Returns the plan's shape with the links that the model actually needs, skip connections included.
PipelineShape shape_of(const Plan& plan, const StageLayout& layout, int microbatches);

}  // namespace millrace
