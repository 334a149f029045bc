// Layers that models leave out if they do nothing.
#pragma once

#include "runtime/layers/layer.h"

namespace millrace {

/// The interface of such a layer, e.g. dropout: a model has no layer for a probability of 0. In an array,
/// every job's model has the layer as soon as one job has it (complete() in model/fuse.h).
class MayBeLeftOut {
 public:
  virtual ~MayBeLeftOut() = default;
  /// Returns the layer for a probability of 0. It passes on its first input and its gradient, draws nothing,
  /// and has no parameters.
  virtual LayerPtr left_out() const = 0;
};

}  // namespace millrace
