#include "runtime/layers/repeated_layer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "runtime/base/check.h"

namespace millrace {
namespace {

bool any_defined(std::span<const at::Tensor> tensors) {
  return std::ranges::any_of(tensors, [](const at::Tensor& t) { return t.defined(); });
}

}  // namespace

RepeatedLayer::RepeatedLayer(LayerPtr layer, int calls)
    : layer_(std::move(layer)),
      multi_(dynamic_cast<const MultiLayer*>(layer_.get())),
      calls_(static_cast<std::size_t>(calls)) {
  MILLRACE_CHECK(calls > 0 && !layer_->draws(), layer_->kind() << " called " << calls << " times");
}

std::vector<TensorSpec> RepeatedLayer::outputs(std::span<const TensorSpec> inputs) const {
  std::vector<TensorSpec> all;
  const std::size_t read = inputs.size() / calls_;
  for (std::size_t c = 0; c < calls_; ++c)
    std::ranges::move(layer_->outputs(inputs.subspan(c * read, read)), std::back_inserter(all));
  return all;
}

std::vector<at::Tensor> RepeatedLayer::forward_all(std::span<const at::Tensor> inputs,
                                                   std::span<const at::Tensor> parameters,
                                                   std::span<at::Tensor> buffers, const CallContext& context,
                                                   Saved* saved) const {
  std::vector<at::Tensor> outputs;
  if (saved) saved->inner = std::vector<Saved>(calls_);
  const std::size_t read = inputs.size() / calls_;
  for (std::size_t c = 0; c < calls_; ++c) {
    const auto own = inputs.subspan(c * read, read);
    Saved* mine = saved ? &saved->inner[c] : nullptr;
    if (!multi_)
      outputs.push_back(layer_->forward(own, parameters, buffers, context, mine));
    else
      std::ranges::move(multi_->forward_all(own, parameters, buffers, context, mine),
                        std::back_inserter(outputs));
  }
  return outputs;
}

std::vector<at::Tensor> RepeatedLayer::backward_input_all(std::span<const at::Tensor> grads,
                                                          std::span<const at::Tensor> parameters,
                                                          Saved& saved, std::span<const bool> needs) const {
  std::vector<at::Tensor> inputs(needs.size());
  const std::size_t read = needs.size() / calls_, made = grads.size() / calls_;
  for (std::size_t c = 0; c < calls_; ++c) {
    const auto own = grads.subspan(c * made, made);
    if (!any_defined(own)) continue;
    const auto own_needs = needs.subspan(c * read, read);
    std::vector<at::Tensor> found =
        multi_ ? multi_->backward_input_all(own, parameters, saved.inner[c], own_needs)
               : layer_->backward_input(own[0], parameters, saved.inner[c], own_needs);
    std::ranges::move(found, inputs.begin() + static_cast<std::ptrdiff_t>(c * read));
  }
  return inputs;
}

void RepeatedLayer::backward_weight_all(std::span<const at::Tensor> grads_of_outputs, Saved& saved,
                                        std::span<at::Tensor> grads) const {
  const std::size_t made = grads_of_outputs.size() / calls_;
  for (std::size_t c = 0; c < calls_; ++c) {
    const auto own = grads_of_outputs.subspan(c * made, made);
    if (!any_defined(own)) continue;
    if (multi_)
      multi_->backward_weight_all(own, saved.inner[c], grads);
    else
      layer_->backward_weight(own[0], saved.inner[c], grads);
  }
}

LayerPtr repeated(LayerPtr layer, int calls) {
  return calls == 1 ? std::move(layer) : std::make_shared<RepeatedLayer>(std::move(layer), calls);
}

}  // namespace millrace
