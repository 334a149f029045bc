// How a plan's stages hang together: which tensor is made where, who needs it, and its shape.
// Derived once from the model and the plan; the same on every rank, so indices can serve as message tags.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/plan/plan.h"
#include "runtime/schedule/schedule.h"
#include "runtime/stage/layered_model.h"

namespace millrace {

/// A tensor that leaves its stage: made in `from`, needed in the later stage `to`.
struct Crossing {
  std::string tensor;
  StageId from;
  StageId to;
  Shape shape;  // [B, ...] for one microbatch
  /// Layers of `to` that read it, once for each input that does, from the last to the first.
  std::vector<int> uses;
  /// The gradient sent back is the sum over `uses`. Else (a layer elsewhere reads the tensor after one of
  /// them) it is one gradient for each use, joined along dimension 0, so that the sum can be made in the
  /// order of one process: from the last layer to the first.
  bool summed = true;

  int gradient_parts() const { return summed ? 1 : static_cast<int>(uses.size()); }
};

struct StageLayout {
  LayeredModel model;
  int microbatch_size = 1;               ///< samples
  std::vector<std::vector<int>> layers;  ///< by stage: indices into model.layers, ascending
  std::vector<char> recomputes;          ///< by stage: its backward runs its forward again (PlanStage)
  std::vector<Shape> output_shapes;      ///< by layer, for one microbatch
  std::vector<Crossing> crossings;       ///< sorted by (from, to, layer order)
  std::vector<StageLink> links;          ///< the distinct (from, to) pairs, sorted

  int num_stages() const { return static_cast<int>(layers.size()); }
  bool needs_input(StageId stage) const;  ///< some layer of the stage reads "input"
};

/// Problems: the plan does not fit the model (validate), shapes that do not fit each other.
Result<StageLayout> make_layout(const LayeredModel& model, const Plan& plan, int microbatch_size);

/// The plan's shape with the links the model really needs (skips included).
PipelineShape shape_of(const Plan& plan, const StageLayout& layout, int microbatches);

}  // namespace millrace
