#include "runtime/emulation/emulated_model.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "runtime/emulation/emulated_device.h"
#include "runtime/layers/carrying_layer.h"

namespace millrace {
namespace {

std::vector<TensorSpec> specs_of(std::span<const at::Tensor> tensors) {
  std::vector<TensorSpec> specs;
  for (const at::Tensor& t : tensors) specs.push_back({.shape = t.sizes().vec(), .dtype = t.scalar_type()});
  return specs;
}

std::vector<at::Tensor> gradients_of(const Saved& saved, std::span<const bool> needs) {
  std::vector<at::Tensor> gradients(needs.size());
  for (std::size_t i = 0; i < needs.size(); ++i)
    if (needs[i]) gradients[i] = at::empty_like(saved.tensors[i]);
  return gradients;
}

/// A layer that takes the place of `layer`. It keeps its inputs, for the shapes of their gradients. Without
/// `costs` it is idle: its tensors are in the host's memory.
class EmulatedLayer final : public MultiLayer {
 public:
  EmulatedLayer(LayerPtr layer, const LayerNode* costs)
      : layer_(std::move(layer)), is_idle_(!costs), costs_(costs ? *costs : LayerNode{}) {}
  std::string kind() const override { return layer_->kind(); }
  CastPolicy cast_policy() const override { return layer_->cast_policy(); }
  std::vector<ParameterSpec> parameters() const override {
    std::vector<ParameterSpec> specs = layer_->parameters();
    if (is_idle_) return specs;
    for (ParameterSpec& spec : specs) {
      spec.init = Init::Zeros;  // values are drawn on the host, for nothing
      spec.value = at::Tensor();
    }
    return specs;
  }
  std::vector<TensorSpec> outputs(std::span<const TensorSpec> inputs) const override {
    return layer_->outputs(inputs);
  }
  std::string training_problem(std::span<const Shape> inputs) const override {
    return layer_->training_problem(inputs);
  }

  std::vector<at::Tensor> forward_all(std::span<const at::Tensor> inputs, std::span<const at::Tensor>,
                                      std::span<at::Tensor>, const CallContext&,
                                      Saved* saved) const override {
    if (saved) saved->tensors.assign(inputs.begin(), inputs.end());
    if (!is_idle_) {
      EmulatedDevice& device = EmulatedDevice::of_thread();
      device.compute(costs_.forward_s);
      if (saved) saved->extra = std::make_shared<EmulatedDevice::Block>(device, costs_.saved_bytes);
    }
    std::vector<at::Tensor> outputs;
    for (const TensorSpec& spec : layer_->outputs(specs_of(inputs)))
      outputs.push_back(at::empty(
          spec.shape,
          at::TensorOptions(spec.dtype).device(is_idle_ ? at::Device(at::kCPU) : at::Device(at::kMeta))));
    return outputs;
  }
  std::vector<at::Tensor> backward_input_all(std::span<const at::Tensor>, std::span<const at::Tensor>,
                                             Saved& saved, std::span<const bool> needs) const override {
    if (!is_idle_) {
      EmulatedDevice& device = EmulatedDevice::of_thread();
      device.touch(costs_.workspace_bytes);
      device.compute(costs_.backward_input_s);
    }
    return gradients_of(saved, needs);
  }
  void backward_weight_all(std::span<const at::Tensor>, Saved&, std::span<at::Tensor>) const override {
    if (!is_idle_) EmulatedDevice::of_thread().compute(costs_.backward_weight_s);
  }
  /// Layers that read rows keep what says which rows, their input, first.
  at::Tensor rows_of_gradient(const Saved& saved) const override {
    return is_idle_ ? layer_->rows_of_gradient(saved) : at::Tensor();
  }

 private:
  LayerPtr layer_;
  bool is_idle_;
  LayerNode costs_;
};

class EmulatedHead final : public Head {
 public:
  /// `seconds`: on an emulated device; none: it is idle.
  EmulatedHead(HeadPtr head, std::optional<double> seconds) : head_(std::move(head)), seconds_(seconds) {}
  std::string kind() const override { return head_->kind(); }
  std::vector<std::string> metrics() const override { return head_->metrics(); }
  std::string weight() const override { return head_->weight(); }
  void check(std::span<const TensorSpec> inputs) const override { head_->check(inputs); }
  void forward(std::span<const at::Tensor> inputs, Saved* saved, std::span<double>) const override {
    run(inputs, saved);
  }
  at::Tensor forward_on_device(std::span<const at::Tensor> inputs, Saved* saved) const override {
    run(inputs, saved);
    return at::zeros({static_cast<std::int64_t>(head_->metrics().size()) + 1}, at::kDouble);
  }
  std::vector<at::Tensor> backward(Saved& saved, LossScale, std::span<const bool> needs) const override {
    return gradients_of(saved, needs);
  }

 private:
  void run(std::span<const at::Tensor> inputs, Saved* saved) const {
    if (seconds_) EmulatedDevice::of_thread().compute(*seconds_);
    if (saved) saved->tensors.assign(inputs.begin(), inputs.end());
  }
  HeadPtr head_;
  std::optional<double> seconds_;
};

/// What no stand-in has.
Status has_stand_ins(const LayeredModel& model) {
  if (!model.turns.empty())
    return Problem{"", "models that are trained in turns are not emulated", "choose a model with one loss"};
  if (const NamedLayer* layer = first_carrying(model.layers))
    return Problem{"", "layer " + layer->name + " carries a state from microbatch to microbatch",
                   "such models are not emulated"};
  return Ok{};
}

}  // namespace

Result<LayeredModel> idle_model(LayeredModel model) {
  if (const Status status = has_stand_ins(model); !status) return status.problems();
  for (NamedLayer& layer : model.layers) layer.layer = std::make_shared<EmulatedLayer>(layer.layer, nullptr);
  for (NamedHead& head : model.heads) head.head = std::make_shared<EmulatedHead>(head.head, std::nullopt);
  return model;
}

Result<LayeredModel> emulated_model(LayeredModel model, const LayerGraph& profile) {
  if (profile.model != model.name)
    return Problem{"", "it is of model " + profile.model + ", the run trains " + model.name,
                   "measure one: millrace profile --model " + model.name};
  if (const Status status = has_stand_ins(model); !status) return status.problems();
  std::map<std::string, const LayerNode*> nodes;
  for (const LayerNode& node : profile.nodes) nodes[node.name] = &node;
  for (NamedLayer& layer : model.layers) {
    const auto found = nodes.find(layer.name);
    if (found == nodes.end())
      return Problem{
          "", "it has no layer " + layer.name,
          "it was measured with other options of the model: measure it again with those of the run"};
    layer.layer = std::make_shared<EmulatedLayer>(layer.layer, found->second);
  }
  const double share = profile.loss_s / static_cast<double>(std::max<std::size_t>(1, model.heads.size()));
  for (NamedHead& head : model.heads) head.head = std::make_shared<EmulatedHead>(head.head, share);
  return model;
}

}  // namespace millrace
