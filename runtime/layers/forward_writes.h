// The kinds of tensors that a layer's forward writes in addition to its outputs. Saves, rescues, skipped
// steps, error checks and --check-writes use it.
#pragma once

#include <algorithm>

#include "runtime/layers/carrying_layer.h"

namespace millrace {

/// The kinds of tensors that a training forward writes and later actions read. All others change only in
/// updates. An evaluation writes none of them, and a recomputed forward leaves them unchanged.
struct ForwardWrites {
  bool parameters = false;  ///< parameters with ParameterSpec::written
  bool buffers = false;     ///< running statistics
  bool carried = false;     ///< states for the following microbatch (CarriesState)

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
