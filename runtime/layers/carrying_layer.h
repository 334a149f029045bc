// A layer that goes on where it ended: what it leaves behind a microbatch it gets back with the microbatch
// whose samples follow (BatchExtent::follows), as an LSTM over running text. So do the layers of a job array
// (job_array.cpp), each from what its own job left.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/layers/layer.h"

namespace millrace {

struct CarriedSpec {
  std::string name;  ///< "h"
  Shape row;         ///< of one sample; of a microbatch [B, row...]: rows may be cut and joined
};

/// What a Layer is besides.
class CarriesState {
 public:
  virtual ~CarriesState() = default;
  virtual std::vector<CarriedSpec> carried() const = 0;
  /// Makes all outputs. `state` has a tensor for each of carried(): what was left before, undefined where the
  /// samples begin; it becomes what this microbatch leaves. No gradient flows back through it.
  virtual std::vector<at::Tensor> forward_all_from(std::span<const at::Tensor> inputs,
                                                   std::span<const at::Tensor> parameters,
                                                   std::span<at::Tensor> state, const CallContext& context,
                                                   Saved* saved) const = 0;
};

class CarryingLayer : public Layer, public CarriesState {
 public:
  /// The same of one output.
  virtual at::Tensor forward_from(std::span<const at::Tensor> inputs, std::span<const at::Tensor> parameters,
                                  std::span<at::Tensor> state, const CallContext& context,
                                  Saved* saved) const = 0;
  std::vector<at::Tensor> forward_all_from(std::span<const at::Tensor> inputs,
                                           std::span<const at::Tensor> parameters,
                                           std::span<at::Tensor> state, const CallContext& context,
                                           Saved* saved) const final {
    return {forward_from(inputs, parameters, state, context, saved)};
  }
  /// From the beginning.
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> parameters,
                     std::span<at::Tensor>, const CallContext& context, Saved* saved) const final {
    std::vector<at::Tensor> state(carried().size());
    return forward_from(inputs, parameters, state, context, saved);
  }
};

/// The first of `layers` (NamedLayer) that carries a state; null if none does.
template <typename NamedLayers>
const auto* first_carrying(const NamedLayers& layers) {
  const auto at = std::ranges::find_if(
      layers, [](const auto& l) { return dynamic_cast<const CarriesState*>(l.layer.get()) != nullptr; });
  return at == layers.end() ? nullptr : &*at;
}

}  // namespace millrace
