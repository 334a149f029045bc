// Layers that models leave out if they have no effect.
#pragma once

#include "runtime/layers/layer.h"

namespace millrace {

/// The interface of such a layer, e.g. dropout: a model has no layer for a probability of 0. In an array,
/// every job's model has the layer if at least one job has it (complete() in model/fuse.h).
class MayBeLeftOut {
 public:
  virtual ~MayBeLeftOut() = default;
  /// Returns the layer for a probability of 0. It passes its first input and the gradient through, draws
  /// nothing, and has no parameters.
  virtual LayerPtr left_out() const = 0;
};

}  // namespace millrace
