// Layers that carry states: such a layer gets back the state that it left after the microbatch whose samples
// this one continues (BatchExtent::follows), as an LSTM over running text does. In a job array
// (job_array.cpp) each layer goes on from the state of its own job.
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

/// The interface that a Layer has besides if it carries states.
class CarriesState {
 public:
  virtual ~CarriesState() = default;
  virtual std::vector<CarriedSpec> carried() const = 0;
  /// Returns the dimension of the first input that counts samples: 1 for text, [T, B, ...].
  virtual std::size_t sample_dimension() const { return 1; }
  /// Computes all outputs. `state` has a tensor for each of carried(): the state that was left before,
  /// undefined if the samples begin here. The call replaces it by the state that this microbatch leaves. No
  /// gradient flows through it.
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
  /// Computes the output without an earlier state: the samples begin here.
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> parameters,
                     std::span<at::Tensor>, const CallContext& context, Saved* saved) const final {
    std::vector<at::Tensor> state(carried().size());
    return forward_from(inputs, parameters, state, context, saved);
  }
};

/// Returns the first of `layers` (NamedLayer) that carries a state; null if none does.
template <typename NamedLayers>
const auto* first_carrying(const NamedLayers& layers) {
  const auto at = std::ranges::find_if(
      layers, [](const auto& l) { return dynamic_cast<const CarriesState*>(l.layer.get()) != nullptr; });
  return at == layers.end() ? nullptr : &*at;
}

}  // namespace millrace
