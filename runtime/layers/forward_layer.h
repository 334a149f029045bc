// The base of layers that implement only the forward. LibTorch's autograd supplies the rest.
#pragma once

#include "runtime/layers/layer.h"

namespace millrace {

/// A subclass implements `kind`, `output_shape`, `compute`, and `parameters` if it has any. Its gradients are
/// those of through_autograd, at the same cost: it keeps the graph's tensors, and the parameters' gradients
/// are computed with the input's and kept.
///
/// `compute` may draw random numbers (torch::randn_like, dropout). They are determined by the run's seed, the
/// layer's name and the microbatch's position: the same for every plan, and when a stage recomputes. Only one
/// thread of a process runs such a layer at a time. Override draws() with false if the layer draws nothing:
/// that saves a few microseconds per call, and ranks that are threads do not wait for each other.
class ForwardLayer : public Layer {
 public:
  ForwardLayer();
  ForwardLayer(const ForwardLayer&) = delete;
  ForwardLayer& operator=(const ForwardLayer&) = delete;

  bool draws() const override { return true; }

  /// Returns the output, computed by differentiable operations. `parameters` are the trainable ones in the
  /// order of parameters(), and `buffers` the others. Buffers are written in place if `context.training`. The
  /// result must not depend on values that the call writes, or a stage that recomputes would get another
  /// result. Thread-safe: the layer has no state but its options.
  virtual at::Tensor compute(std::span<const at::Tensor> inputs, std::span<const at::Tensor> parameters,
                             std::span<at::Tensor> buffers, const CallContext& context) const = 0;

  /// Calls compute(), with LibTorch's random numbers drawn from the engine's stream.
  at::Tensor computed(std::span<const at::Tensor> inputs, std::span<const at::Tensor> parameters,
                      std::span<at::Tensor> buffers, const CallContext& context) const;

 private:
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> parameters,
                     std::span<at::Tensor> buffers, const CallContext& context, Saved* saved) const final;
  std::vector<at::Tensor> backward_input(const at::Tensor& grad_output,
                                         std::span<const at::Tensor> parameters, Saved& saved,
                                         std::span<const bool> needs) const final;
  void backward_weight(const at::Tensor& grad_output, Saved& saved, std::span<at::Tensor> grads) const final;

  LayerPtr recorded_;
};

}  // namespace millrace
