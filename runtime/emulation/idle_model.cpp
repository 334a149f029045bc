#include "runtime/emulation/idle_model.h"

#include <memory>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "runtime/emulation/stand_ins.h"

namespace millrace {
namespace {

std::vector<at::Tensor> gradients_like(const Saved& saved, std::span<const bool> needs) {
  std::vector<at::Tensor> gradients(needs.size());
  for (std::size_t i = 0; i < needs.size(); ++i)
    if (needs[i]) gradients[i] = at::empty_like(saved.tensors[i]);
  return gradients;
}

/// Keeps its inputs, whose shapes determine those of their gradients.
class IdleLayer : public StandInLayer {
 public:
  using StandInLayer::StandInLayer;
  /// Checkpoints reject states that are not finite, so these are zero.
  static at::Tensor state(const Shape& shape, at::ScalarType dtype) {
    return at::zeros(shape, at::TensorOptions(dtype));
  }
  std::vector<at::Tensor> forward_all(std::span<const at::Tensor> inputs, std::span<const at::Tensor>,
                                      std::span<at::Tensor>, const CallContext&,
                                      Saved* saved) const override {
    if (saved) saved->tensors.assign(inputs.begin(), inputs.end());
    std::vector<at::Tensor> made;
    for (const TensorSpec& spec : layer_->outputs(specs_of(inputs)))
      made.push_back(at::empty(spec.shape, at::TensorOptions(spec.dtype)));
    return made;
  }
  std::vector<at::Tensor> backward_input_all(std::span<const at::Tensor>, std::span<const at::Tensor>,
                                             Saved& saved, std::span<const bool> needs) const override {
    return gradients_like(saved, needs);
  }
  void backward_weight_all(std::span<const at::Tensor>, Saved&, std::span<at::Tensor>) const override {}
  /// Layers that read rows keep the row indices, their input, first.
  at::Tensor rows_of_gradient(const Saved& saved) const override { return layer_->rows_of_gradient(saved); }
};

class IdleHead final : public StandInHead {
 public:
  using StandInHead::StandInHead;
  std::vector<at::Tensor> backward(Saved& saved, LossScale, std::span<const bool> needs) const override {
    return gradients_like(saved, needs);
  }

 private:
  void run(std::span<const at::Tensor> inputs, Saved* saved) const override {
    if (saved) saved->tensors.assign(inputs.begin(), inputs.end());
  }
};

void make_idle(LayeredModel& model) {
  for (NamedLayer& layer : model.layers) layer.layer = stand_in<IdleLayer>(layer.layer);
  for (NamedHead& head : model.heads) head.head = std::make_shared<IdleHead>(head.head);
  for (Turn& turn : model.turns) make_idle(turn.model);
}

}  // namespace

LayeredModel idle_model(LayeredModel model) {
  make_idle(model);
  return model;
}

}  // namespace millrace
