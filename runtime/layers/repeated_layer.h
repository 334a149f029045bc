// A layer that is called several times in a microbatch, e.g. a discriminator on real and on generated images.
#pragma once

#include "runtime/layers/layer.h"

namespace millrace {

/// Calls a layer several times in sequence, with the same parameters. Each call updates the running
/// statistics. Inputs and outputs are those of the first call, then those of the second, and so on. A call
/// whose outputs get no gradient has no backward. The layer must not draw random numbers.
class RepeatedLayer final : public MultiLayer {
 public:
  RepeatedLayer(LayerPtr layer, int calls);
  const LayerPtr& layer() const { return layer_; }
  int calls() const { return static_cast<int>(calls_); }

  std::string kind() const override { return layer_->kind(); }
  CastPolicy cast_policy() const override { return layer_->cast_policy(); }
  std::vector<ParameterSpec> parameters() const override { return layer_->parameters(); }
  std::vector<TensorSpec> outputs(std::span<const TensorSpec> inputs) const override;
  std::vector<at::Tensor> forward_all(std::span<const at::Tensor> inputs,
                                      std::span<const at::Tensor> parameters, std::span<at::Tensor> buffers,
                                      const CallContext& context, Saved* saved) const override;
  std::vector<at::Tensor> backward_input_all(std::span<const at::Tensor> grads,
                                             std::span<const at::Tensor> parameters, Saved& saved,
                                             std::span<const bool> needs) const override;
  void backward_weight_all(std::span<const at::Tensor> grads_of_outputs, Saved& saved,
                           std::span<at::Tensor> grads) const override;

 private:
  LayerPtr layer_;
  const MultiLayer* multi_;  ///< `layer_` as a MultiLayer, if it has several outputs; else null
  std::size_t calls_;
};

/// Returns a RepeatedLayer of `layer`, or `layer` itself if `calls` is 1.
LayerPtr repeated(LayerPtr layer, int calls);

}  // namespace millrace
