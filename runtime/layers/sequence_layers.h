// Layers over tokens and vectors. Parameter names and shapes are PyTorch's. V vocabulary, F features.
#pragma once

#include "runtime/layers/layer.h"

namespace millrace {

struct EmbeddingOptions {
  std::int64_t vocabulary = 1;
  std::int64_t features = 1;
  double deviation = 1;  ///< of the normal distribution of initial values; 0: see `range`
  double range = 0;      ///< uniform in +-range
};
LayerPtr embedding(const EmbeddingOptions& options);  ///< int64 [...] in [0, V) -> [..., F]

LayerPtr layer_norm(std::int64_t features, double epsilon = 1e-5);  ///< over the last dimension

}  // namespace millrace
