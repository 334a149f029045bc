// A layer that goes on where it ended: what it leaves behind a microbatch it gets back with the microbatch
// whose samples follow (BatchExtent::follows), as an LSTM over running text.
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

class CarryingLayer : public Layer {
 public:
  virtual std::vector<CarriedSpec> carried() const = 0;
  /// As forward. `state` has a tensor for each of carried(): what was left before, undefined where the
  /// samples begin; it becomes what this microbatch leaves. No gradient flows back through it.
  virtual at::Tensor forward_from(std::span<const at::Tensor> inputs, std::span<const at::Tensor> parameters,
                                  std::span<at::Tensor> state, const CallContext& context,
                                  Saved* saved) const = 0;
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
      layers, [](const auto& l) { return dynamic_cast<const CarryingLayer*>(l.layer.get()) != nullptr; });
  return at == layers.end() ? nullptr : &*at;
}

}  // namespace millrace
