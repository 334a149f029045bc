// A model: an ordered list of named layers and the named tensors between them.
#pragma once

#include <string>
#include <vector>

#include "runtime/layers/layer.h"

namespace millrace {

/// `output` is the name of the tensor made (unique; by custom the layer's name). `inputs` are outputs of
/// earlier layers or "input" (the batch).
struct NamedLayer {
  std::string name;  ///< unique; parameters are `name + "." + spec.name` (torchvision's state_dict names)
  LayerPtr layer;
  std::vector<std::string> inputs;
};

/// Pure description, cheap to copy. The last layer's output goes to the loss (softmax cross-entropy on
/// integer targets). A skip connection is a layer with two inputs (Add).
struct LayeredModel {
  std::string name;
  Shape input_shape;  ///< one sample, without the batch dimension, e.g. {3, 224, 224}
  int num_classes = 0;
  std::vector<NamedLayer> layers;

  std::vector<std::string> layer_names() const;
  std::int64_t num_parameters() const;  ///< trainable elements
};

}  // namespace millrace
