// The kinds of tensors that a layer's forward writes besides its outputs. Saves, rescues, skipped steps,
// refusals and --check-writes ask here.
#pragma once

#include <algorithm>

#include "runtime/layers/carrying_layer.h"

namespace millrace {

/// The kinds of tensors that a forward in training writes and later actions read. All others change in
/// updates alone. An evaluation writes none of them, and a forward that recompute runs again leaves them as
/// they are.
struct ForwardWrites {
  bool parameters = false;  ///< those with ParameterSpec::written
  bool buffers = false;     ///< running statistics
  bool carried = false;     ///< states for the microbatch that follows (CarriesState)

  bool any() const { return parameters || buffers || carried; }
  void add(const ForwardWrites& other) {
    parameters = parameters || other.parameters;
    buffers = buffers || other.buffers;
    carried = carried || other.carried;
  }
};

inline ForwardWrites forward_writes(const Layer& layer) {
  const std::vector<ParameterSpec> specs = layer.parameters();
  return {.parameters = std::ranges::any_of(specs, &ParameterSpec::written),
          .buffers = std::ranges::any_of(specs, &ParameterSpec::is_buffer),
          .carried = dynamic_cast<const CarriesState*>(&layer) != nullptr};
}

}  // namespace millrace
