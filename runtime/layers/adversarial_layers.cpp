#include "runtime/layers/adversarial_layers.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/leaky_relu_backward.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sub.h>

#include <utility>

#include "runtime/base/error.h"
#include "runtime/layers/shape_errors.h"
#include "runtime/layers/sums_on_device.h"

namespace millrace {
namespace {

class NormalNoise final : public Layer {
 public:
  explicit NormalNoise(Shape sample) : sample_(std::move(sample)) {}
  std::string kind() const override { return "normal_noise"; }
  bool draws() const override { return true; }
  bool like(const Layer& other) const override {
    return sample_ == static_cast<const NormalNoise&>(other).sample_;
  }
  CastPolicy cast_policy() const override { return CastPolicy::Promote; }
  Shape output_shape(std::span<const Shape> inputs) const override {
    if (inputs[0].empty()) throw_bad_shape("normal_noise", inputs[0], "[B, ...]");
    Shape shape{inputs[0][0]};
    shape.insert(shape.end(), sample_.begin(), sample_.end());
    return shape;
  }
  /// Draws on the CPU for every device, so that the numbers are the same everywhere.
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext& context, Saved*) const override {
    const at::Tensor& like = inputs[0];
    const Shape shapes[] = {like.sizes().vec()};
    const at::Tensor noise =
        at::empty(output_shape(shapes), at::TensorOptions(at::kFloat).pinned_memory(!like.device().is_cpu()));
    noise.normal_(0, 1, at::detail::createCPUGenerator(context.random_seed));
    const at::ScalarType dtype = like.is_floating_point() ? like.scalar_type() : at::kFloat;
    return noise.to(like.device(), dtype, /*non_blocking=*/true);
  }
  std::vector<at::Tensor> backward_input(const at::Tensor&, std::span<const at::Tensor>, Saved&,
                                         std::span<const bool>) const override {
    return {at::Tensor()};
  }

 private:
  Shape sample_;
};

class LeakyRelu final : public Layer {
 public:
  explicit LeakyRelu(double slope) : slope_(slope) {}
  std::string kind() const override { return "leaky_relu"; }
  CastPolicy cast_policy() const override { return CastPolicy::Promote; }
  bool folds() const override { return true; }
  bool like(const Layer& other) const override {
    return slope_ == static_cast<const LeakyRelu&>(other).slope_;
  }
  Shape output_shape(std::span<const Shape> inputs) const override { return inputs[0]; }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    at::Tensor output = at::leaky_relu(inputs[0], slope_);
    if (saved) saved->tensors = {output};  // the next layer keeps the same tensor: no extra memory
    return output;
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved& saved,
                                         std::span<const bool>) const override {
    // With a positive slope, the output has the input's sign.
    return {at::leaky_relu_backward(grad, saved.tensors[0], slope_, /*self_is_result=*/true)};
  }

 private:
  double slope_;
};

class AdversarialHead final : public Head {
 public:
  explicit AdversarialHead(std::vector<JudgedScores> judged) : judged_(std::move(judged)) {}
  std::string kind() const override { return "adversarial"; }
  std::vector<std::string> metrics() const override {
    std::vector<std::string> names{"loss"};
    for (const JudgedScores& one : judged_) names.push_back(one.mean);
    return names;
  }
  void check(std::span<const TensorSpec> inputs) const override {
    bool fits = inputs.size() == judged_.size();
    for (const TensorSpec& input : inputs)
      fits = fits && at::isFloatingType(input.dtype) && !input.shape.empty() &&
             input.shape.front() == inputs[0].shape.front();
    if (!fits)
      throw ConfigError("adversarial needs " + std::to_string(judged_.size()) +
                        " floating scores [B, ...] of as many samples each");
  }
  void forward(std::span<const at::Tensor> inputs, Saved* saved, std::span<double> sums) const override {
    const auto samples = static_cast<double>(inputs[0].size(0));
    for (std::size_t i = 0; i < judged_.size(); ++i) {
      const at::Tensor& scores = inputs[i];
      const at::Tensor labels = at::full_like(scores, judged_[i].label);
      sums[0] += at::binary_cross_entropy_with_logits(scores, labels).item<double>() * samples;
      sums[i + 1] += at::mean(at::sigmoid(scores)).item<double>() * samples;
    }
    sums[judged_.size() + 1] += samples;
    if (saved) saved->tensors.assign(inputs.begin(), inputs.end());
  }
  at::Tensor forward_on_device(std::span<const at::Tensor> inputs, Saved* saved) const override {
    std::vector<at::Tensor> means(1);  // the loss first
    for (std::size_t i = 0; i < judged_.size(); ++i) {
      const at::Tensor& scores = inputs[i];
      const at::Tensor loss =
          at::binary_cross_entropy_with_logits(scores, at::full_like(scores, judged_[i].label));
      means[0] = means[0].defined() ? at::add(means[0], loss) : loss;
      means.push_back(at::mean(at::sigmoid(scores)));
    }
    if (saved) saved->tensors.assign(inputs.begin(), inputs.end());
    return sums_on_device(means, double(inputs[0].size(0)));
  }
  std::vector<at::Tensor> backward(Saved& saved, LossScale scale,
                                   std::span<const bool> needs) const override {
    std::vector<at::Tensor> grads(judged_.size());
    for (std::size_t i = 0; i < judged_.size(); ++i) {
      if (!needs[i]) continue;
      const at::Tensor& scores = saved.tensors[i];
      grads[i] = at::sub(at::sigmoid(scores), judged_[i].label).mul_(scale.share / double(scores.numel()));
    }
    return grads;
  }

 private:
  std::vector<JudgedScores> judged_;
};

}  // namespace

LayerPtr normal_noise(Shape sample) {
  return std::make_shared<NormalNoise>(std::move(sample));
}
LayerPtr leaky_relu(double slope) {
  return std::make_shared<LeakyRelu>(slope);
}
HeadPtr adversarial_head(std::vector<JudgedScores> judged) {
  return std::make_shared<AdversarialHead>(std::move(judged));
}

}  // namespace millrace
