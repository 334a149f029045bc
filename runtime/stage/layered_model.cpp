#include "runtime/stage/layered_model.h"

namespace millrace {

std::vector<std::string> LayeredModel::layer_names() const {
  std::vector<std::string> names;
  for (const NamedLayer& layer : layers) names.push_back(layer.name);
  return names;
}

std::int64_t LayeredModel::num_parameters() const {
  std::int64_t total = 0;
  for (const NamedLayer& layer : layers) {
    for (const ParameterSpec& spec : layer.layer->parameters()) {
      if (spec.is_buffer) continue;
      std::int64_t elements = 1;
      for (std::int64_t d : spec.shape) elements *= d;
      total += elements;
    }
  }
  return total;
}

}  // namespace millrace
