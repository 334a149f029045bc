// Layers that carry states across microbatches. If a microbatch continues the samples of an earlier one
// (BatchExtent::follows), the layer resumes from the state after that one, as an LSTM over running text does.
// In a job array (job_array.cpp), each layer resumes from its own job's state.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/layers/layer.h"

namespace millrace {

struct CarriedSpec {
  std::string name;  ///< "h"
  Shape row;  ///< shape for one sample; a microbatch has [B, row...], whose rows may be split and joined
};

/// The additional interface of a Layer that carries states.
class CarriesState {
 public:
  virtual ~CarriesState() = default;
  virtual std::vector<CarriedSpec> carried() const = 0;
  /// Returns the sample dimension of the first input: 1 for text, [T, B, ...].
  virtual std::size_t sample_dimension() const { return 1; }
  /// Computes all outputs. `state` has a tensor for each of carried(): the earlier state, undefined if the
  /// samples start here. The call replaces it by the state after this microbatch. No gradient flows through
  /// it.
  virtual std::vector<at::Tensor> forward_all_from(std::span<const at::Tensor> inputs,
                                                   std::span<const at::Tensor> parameters,
                                                   std::span<at::Tensor> state, const CallContext& context,
                                                   Saved* saved) const = 0;
};

class CarryingLayer : public Layer, public CarriesState {
 public:
  /// Does the same as forward_all_from() for a layer with one output.
  virtual at::Tensor forward_from(std::span<const at::Tensor> inputs, std::span<const at::Tensor> parameters,
                                  std::span<at::Tensor> state, const CallContext& context,
                                  Saved* saved) const = 0;
  std::vector<at::Tensor> forward_all_from(std::span<const at::Tensor> inputs,
                                           std::span<const at::Tensor> parameters,
                                           std::span<at::Tensor> state, const CallContext& context,
                                           Saved* saved) const final {
    return {forward_from(inputs, parameters, state, context, saved)};
  }
  /// Computes the output without an earlier state: the samples start here.
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> parameters,
                     std::span<at::Tensor>, const CallContext& context, Saved* saved) const final {
    std::vector<at::Tensor> state(carried().size());
    return forward_from(inputs, parameters, state, context, saved);
  }
};

/// Returns the first layer (NamedLayer) of `layers` that carries a state; null if none does.
template <typename NamedLayers>
const auto* first_carrying(const NamedLayers& layers) {
  const auto at = std::ranges::find_if(
      layers, [](const auto& l) { return dynamic_cast<const CarriesState*>(l.layer.get()) != nullptr; });
  return at == layers.end() ? nullptr : &*at;
}

}  // namespace millrace
