#include "runtime/layers/forward_layer.h"

#include "runtime/base/check.h"
#include "runtime/layers/autograd_layer.h"
#include "runtime/layers/seeded_draws.h"

namespace millrace {
namespace {

/// The layer that through_autograd calls. It has only a forward.
class Computed final : public Layer {
 public:
  explicit Computed(const ForwardLayer& layer) : layer_(layer) {}
  std::string kind() const override { return layer_.kind(); }
  bool draws() const override { return layer_.draws(); }
  Shape output_shape(std::span<const Shape> inputs) const override { return layer_.output_shape(inputs); }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> parameters,
                     std::span<at::Tensor> buffers, const CallContext& context, Saved*) const override {
    return layer_.computed(inputs, parameters, buffers, context);
  }
  std::vector<at::Tensor> backward_input(const at::Tensor&, std::span<const at::Tensor>, Saved&,
                                         std::span<const bool>) const override {
    MILLRACE_CHECK(false, "backward of a " << kind() << " that only has a forward");
    return {};
  }

 private:
  const ForwardLayer& layer_;
};

}  // namespace

ForwardLayer::ForwardLayer() : recorded_(through_autograd(std::make_shared<Computed>(*this))) {}

at::Tensor ForwardLayer::forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> parameters,
                                 std::span<at::Tensor> buffers, const CallContext& context,
                                 Saved* saved) const {
  return saved ? recorded_->forward(inputs, parameters, buffers, context, saved)
               : computed(inputs, parameters, buffers, context);
}

at::Tensor ForwardLayer::computed(std::span<const at::Tensor> inputs, std::span<const at::Tensor> parameters,
                                  std::span<at::Tensor> buffers, const CallContext& context) const {
  if (!draws()) return compute(inputs, parameters, buffers, context);
  const at::Tensor& on = inputs.empty() ? parameters.front() : inputs.front();
  const SeededDraws seeded(on.device(), context.random_seed);
  return compute(inputs, parameters, buffers, context);
}

std::vector<at::Tensor> ForwardLayer::backward_input(const at::Tensor& grad_output,
                                                     std::span<const at::Tensor> parameters, Saved& saved,
                                                     std::span<const bool> needs) const {
  return recorded_->backward_input(grad_output, parameters, saved, needs);
}

void ForwardLayer::backward_weight(const at::Tensor& grad_output, Saved& saved,
                                   std::span<at::Tensor> grads) const {
  recorded_->backward_weight(grad_output, saved, grads);
}

}  // namespace millrace
