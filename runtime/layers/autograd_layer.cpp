#include "runtime/layers/autograd_layer.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <utility>

#include "runtime/base/check.h"
#include "runtime/layers/recorded.h"

namespace millrace {
namespace {

class AutogradLayer final : public Layer {
 public:
  explicit AutogradLayer(LayerPtr layer) : layer_(std::move(layer)) {}
  std::string kind() const override { return layer_->kind(); }
  bool draws() const override { return layer_->draws(); }
  CastPolicy cast_policy() const override { return layer_->cast_policy(); }
  std::vector<ParameterSpec> parameters() const override { return layer_->parameters(); }
  Shape output_shape(std::span<const Shape> inputs) const override { return layer_->output_shape(inputs); }
  std::vector<TensorSpec> outputs(std::span<const TensorSpec> inputs) const override {
    return layer_->outputs(inputs);
  }
  std::string training_problem(std::span<const Shape> inputs) const override {
    return layer_->training_problem(inputs);
  }

  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> parameters,
                     std::span<at::Tensor> buffers, const CallContext& context, Saved* saved) const override {
    if (!saved) return layer_->forward(inputs, parameters, buffers, context, nullptr);
    at::AutoGradMode with_grad(true);
    auto graph = std::make_shared<Graph>();
    for (const at::Tensor& input : inputs) graph->leaves.push_back(leaf_of(input));
    graph->inputs = inputs.size();
    for (const at::Tensor& parameter : parameters) graph->leaves.push_back(leaf_of(parameter));
    const std::span<const at::Tensor> leaves(graph->leaves);
    graph->output = layer_->forward(leaves.first(inputs.size()), leaves.subspan(inputs.size()), buffers,
                                    context, nullptr);
    at::Tensor output = graph->output.detach();
    saved->extra = std::move(graph);
    return output;
  }

  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved& saved,
                                         std::span<const bool>) const override {
    auto graph = std::static_pointer_cast<Graph>(std::exchange(saved.extra, nullptr));
    MILLRACE_CHECK(graph, "backward of a " << kind() << " without its forward");
    std::vector<at::Tensor> gradients = gradients_of(graph->output, grad, graph->leaves);
    const auto split = gradients.begin() + static_cast<std::ptrdiff_t>(graph->inputs);
    saved.tensors.assign(split, gradients.end());
    gradients.erase(split, gradients.end());
    return gradients;
  }

  void backward_weight(const at::Tensor&, Saved& saved, std::span<at::Tensor> grads) const override {
    for (std::size_t i = 0; i < grads.size(); ++i) {
      // A one-step sequence does not use the recurrent weights.
      if (saved.tensors[i].defined()) grads[i].add_(saved.tensors[i]);
    }
  }

 private:
  struct Graph {
    std::vector<at::Tensor> leaves;  ///< inputs, then parameters
    std::size_t inputs = 0;
    at::Tensor output;
  };
  LayerPtr layer_;
};

}  // namespace

at::Tensor leaf_of(const at::Tensor& input) {
  return input.is_floating_point() ? input.detach().requires_grad_(true) : input;
}

std::vector<at::Tensor> gradients_of(const at::Tensor& output, const at::Tensor& grad,
                                     const std::vector<at::Tensor>& leaves) {
  at::AutoGradMode with_grad(true);
  std::vector<at::Tensor> wanted;
  for (const at::Tensor& leaf : leaves) {
    if (leaf.requires_grad()) wanted.push_back(leaf);
  }
  auto found = torch::autograd::grad({output}, wanted, {grad}, /*retain_graph=*/false,
                                     /*create_graph=*/false, /*allow_unused=*/true);
  std::vector<at::Tensor> gradients;
  std::size_t next = 0;
  for (const at::Tensor& leaf : leaves)
    gradients.push_back(leaf.requires_grad() ? std::move(found[next++]) : at::Tensor());
  return gradients;
}

LayerPtr through_autograd(LayerPtr layer) {
  return std::make_shared<AutogradLayer>(std::move(layer));
}

}  // namespace millrace
