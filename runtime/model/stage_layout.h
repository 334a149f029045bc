// Describes how a plan's stages hang together: where each tensor is made, which stages need it, and what
// crosses a border. It is derived once from the model and the plan. It is the same on every rank, so its
// indices can serve in message tags.
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
  int layer = -1;   ///< index of the layer that makes it, or -1
  TensorSpec spec;  ///< for a microbatch of nominal extent; the dtype holds for all
  /// The tensor is differentiable, and a head's loss depends on it: one of its readers gives it a gradient.
  bool wants_gradient = false;
};

/// A tensor that leaves its stage: made in `from`, needed in the later stage `to`.
struct Crossing {
  int tensor = 0;  ///< index in StageLayout::tensors
  StageId from;
  StageId to;
  /// The layers and heads (num_layers + head) of `to` that read it, from the last to the first. A reader is
  /// there once for each of its inputs that is this tensor.
  std::vector<int> uses;
  /// True if the gradient that is sent back is the sum over `uses`. False if a layer of another stage reads
  /// the tensor after one of them. Then one gradient for each use is sent, joined along dimension 0, and the
  /// receiver adds them in the order of a single process, from the last reader to the first.
  bool summed = true;
  bool has_gradient = true;  ///< ModelTensor::wants_gradient

  int gradient_parts() const { return summed ? 1 : static_cast<int>(uses.size()); }
};

/// A parameter that a layer of one stage uses and a layer of another owns.
struct TieAcross {
  std::string owner;  ///< full name
  int layer = 0;      ///< the layer that uses it
  StageId owner_stage;
  StageId user_stage;
};

struct StageLayout {
  LayeredModel model;
  BatchExtent nominal;  ///< extent of a microbatch of nominal lengths
  /// The type that layers of CastPolicy::Lower compute in. kFloat: all layers compute in the precision of
  /// the run.
  at::ScalarType lower = at::kFloat;
  std::vector<ModelTensor> tensors;          ///< fields first, then outputs in the order of layers
  std::vector<std::vector<int>> reads;       ///< by layer: tensors of its inputs
  std::vector<std::vector<int>> makes;       ///< by layer: tensors of its outputs
  std::vector<std::vector<int>> head_reads;  ///< by head: tensors of its inputs
  std::vector<std::vector<int>> layers;      ///< by stage: indices into model.layers, ascending
  std::vector<int> stage_of_layer;
  std::vector<int> stage_of_head;
  std::vector<char> recomputes;     ///< by stage: its backward runs its forward again (PlanStage)
  std::vector<Crossing> crossings;  ///< sorted by (from, to, layer order)
  std::vector<StageLink> links;     ///< the distinct (from, to) pairs, sorted
  std::vector<TieAcross> ties;      ///< in the order of the layers that use them
  /// All tensors that one stage sends to another for a microbatch are one message. Spread tables do so: each
  /// rank sends the vectors of many tables. Other plans send few tensors, and save the copy.
  bool joins_messages = false;
  std::vector<StageLayout> turns;  ///< the layouts of the model's turns

  int num_stages() const { return static_cast<int>(layers.size()); }
  bool casts() const { return lower != at::kFloat; }
  /// Returns which fields of a batch the layers and heads of the stage read: by index, 0 or 1.
  std::vector<char> fields_of(StageId stage) const;
};

/// Makes the layout. Problems: those of the model itself (validate), a plan that does not fit the model,
/// and shapes that do not fit each other.
Result<StageLayout> make_layout(const LayeredModel& model, const Plan& plan, int microbatch_size,
                                Precision precision = Precision::Float32);

/// Returns the shapes of all tensors for a microbatch of `extent`, by index in StageLayout::tensors. Throws
/// ConfigError if shapes do not fit.
std::vector<Shape> tensor_shapes(const StageLayout& layout, const BatchExtent& extent);

/// Returns one problem if layers cannot be trained on microbatches of the nominal extent
/// (Layer::training_problem). `joined` tells by stage whether its replicas share their statistics; the
/// layers of such a stage are not asked.
Problems untrainable_layers(const StageLayout& layout, const std::vector<char>& joined);

/// Remembers the shapes of the extents it has seen. Not thread-safe.
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

/// Returns the plan's shape with the links that the model really needs, skip connections included.
PipelineShape shape_of(const Plan& plan, const StageLayout& layout, int microbatches);

}  // namespace millrace
