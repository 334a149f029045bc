// Layers that models leave out where they do nothing.
#pragma once

#include "runtime/layers/layer.h"

namespace millrace {

/// Dropout: a model has no layer for a probability of 0. In an array the layer stands in every job's model as
/// soon as one job has it (complete() in stage/fuse.h).
class MayBeLeftOut {
 public:
  virtual ~MayBeLeftOut() = default;
  /// The layer for a probability of 0: it gives its first input and its gradient as they are, draws nothing,
  /// and has no parameters.
  virtual LayerPtr left_out() const = 0;
};

}  // namespace millrace
