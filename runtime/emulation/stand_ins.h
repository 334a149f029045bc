// Replacements for layers and heads whose values are not needed. Internal to this folder.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/zeros.h>

#include "runtime/layers/carrying_layer.h"
#include "runtime/layers/head.h"
#include "runtime/layers/layer.h"
#include "runtime/model/layered_model.h"

namespace millrace {

inline std::vector<TensorSpec> specs_of(std::span<const at::Tensor> tensors) {
  std::vector<TensorSpec> specs;
  for (const at::Tensor& t : tensors) specs.push_back({.shape = t.sizes().vec(), .dtype = t.scalar_type()});
  return specs;
}

/// Has the name, parameters and shapes of `layer`. Subclasses define what it computes and when.
class StandInLayer : public MultiLayer {
 public:
  explicit StandInLayer(LayerPtr layer) : layer_(std::move(layer)) {}
  std::string kind() const override { return layer_->kind(); }
  CastPolicy cast_policy() const override { return layer_->cast_policy(); }
  std::vector<ParameterSpec> parameters() const override { return layer_->parameters(); }
  std::vector<TensorSpec> outputs(std::span<const TensorSpec> inputs) const override {
    return layer_->outputs(inputs);
  }
  std::string training_problem(std::span<const Shape> inputs) const override {
    return layer_->training_problem(inputs);
  }

 protected:
  const LayerPtr layer_;
};

/// A `Base`, which is a StandInLayer, that replaces a layer with carried states. The states have the original
/// shapes, and Base::state() creates them.
template <class Base>
class CarryingStandIn final : public Base, public CarriesState {
 public:
  using Base::Base;
  std::vector<CarriedSpec> carried() const override { return real().carried(); }
  std::size_t sample_dimension() const override { return real().sample_dimension(); }
  std::vector<at::Tensor> forward_all_from(std::span<const at::Tensor> inputs,
                                           std::span<const at::Tensor> parameters,
                                           std::span<at::Tensor> state, const CallContext& context,
                                           Saved* saved) const override {
    const std::vector<CarriedSpec> specs = carried();
    for (std::size_t i = 0; i < specs.size(); ++i) {
      Shape shape{inputs.front().size(static_cast<std::int64_t>(sample_dimension()))};
      shape.insert(shape.end(), specs[i].row.begin(), specs[i].row.end());
      state[i] = Base::state(shape, inputs.front().scalar_type());
    }
    return this->forward_all(inputs, parameters, {}, context, saved);
  }

 private:
  const CarriesState& real() const { return dynamic_cast<const CarriesState&>(*this->layer_); }
};

/// Returns a `Base` that replaces `layer`, with its carried states if any. `more`: Base's further arguments.
template <class Base, class... More>
LayerPtr stand_in(const LayerPtr& layer, const More&... more) {
  if (dynamic_cast<const CarriesState*>(layer.get()))
    return std::make_shared<CarryingStandIn<Base>>(layer, more...);
  return std::make_shared<Base>(layer, more...);
}

/// Replaces a head. Its sums are zero.
class StandInHead : public Head {
 public:
  explicit StandInHead(HeadPtr head) : head_(std::move(head)) {}
  std::string kind() const override { return head_->kind(); }
  std::vector<std::string> metrics() const override { return head_->metrics(); }
  std::size_t num_counts() const override { return head_->num_counts(); }
  std::string weight() const override { return head_->weight(); }
  NamedValues values(std::span<const double>) const override {
    NamedValues zeros;
    for (const std::string& name : metrics()) zeros.emplace_back(name, 0.0);
    return zeros;
  }
  void check(std::span<const TensorSpec> inputs) const override { head_->check(inputs); }
  void forward(std::span<const at::Tensor> inputs, Saved* saved, std::span<double>) const override {
    run(inputs, saved);
  }
  at::Tensor forward_on_device(std::span<const at::Tensor> inputs, Saved* saved) const override {
    run(inputs, saved);
    return at::zeros({static_cast<std::int64_t>(num_sums())}, at::kDouble);
  }

 protected:
  virtual void run(std::span<const at::Tensor> inputs, Saved* saved) const = 0;

 private:
  const HeadPtr head_;
};

}  // namespace millrace
