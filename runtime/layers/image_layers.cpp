#include "runtime/layers/image_layers.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/_prelu_kernel.h>
#include <ATen/ops/_prelu_kernel_backward.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/avg_pool2d_backward.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/hardsigmoid.h>
#include <ATen/ops/hardsigmoid_backward.h>
#include <ATen/ops/hardswish.h>
#include <ATen/ops/hardswish_backward.h>
#include <ATen/ops/hardtanh.h>
#include <ATen/ops/hardtanh_backward.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/layers/group_normalisation.h"
#include "runtime/layers/job_kernels.h"
#include "runtime/layers/shape_errors.h"

namespace millrace {
namespace {

class AvgPool2d final : public Layer {
 public:
  explicit AvgPool2d(const AvgPoolOptions& options) : o_(options) {}
  std::string kind() const override { return "avg_pool2d"; }
  CastPolicy cast_policy() const override { return CastPolicy::Promote; }
  bool like(const Layer& other) const override {
    const AvgPoolOptions& o = static_cast<const AvgPool2d&>(other).o_;
    return o_.kernel == o.kernel && o_.stride == o.stride && o_.padding == o.padding &&
           o_.count_padding == o.count_padding;
  }
  bool folds() const override { return true; }
  Shape output_shape(std::span<const Shape> inputs) const override {
    const Shape& x = inputs[0];
    const std::int64_t least = o_.kernel - 2 * o_.padding;
    if (x.size() != 4 || x[2] < least || x[3] < least)
      throw_bad_shape("avg_pool2d", x, "[B, C, H, W] with H, W >= " + std::to_string(least));
    const auto size = [&](std::int64_t n) { return (n - least) / o_.stride + 1; };
    return {x[0], x[1], size(x[2]), size(x[3])};
  }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    if (saved) saved->tensors = {inputs[0]};
    return at::avg_pool2d(inputs[0], {o_.kernel, o_.kernel}, {o_.stride, o_.stride}, {o_.padding, o_.padding},
                          false, o_.count_padding);
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved& saved,
                                         std::span<const bool>) const override {
    return {at::avg_pool2d_backward(grad, saved.tensors[0], {o_.kernel, o_.kernel}, {o_.stride, o_.stride},
                                    {o_.padding, o_.padding}, false, o_.count_padding, {})};
  }

 private:
  AvgPoolOptions o_;
};

class Concat final : public Layer {
 public:
  std::string kind() const override { return "concat"; }
  CastPolicy cast_policy() const override { return CastPolicy::Promote; }
  bool like(const Layer&) const override { return true; }
  bool folds() const override { return true; }
  Shape output_shape(std::span<const Shape> inputs) const override {
    Shape shape = inputs[0];
    if (shape.size() < 2) throw_bad_shape("concat", shape, "[B, C, ...]");
    for (const Shape& input : inputs.subspan(1)) {
      Shape same = input;
      if (same.size() == shape.size()) same[1] = shape[1];
      if (same != shape) throw_bad_shape("concat", input, "the first input's shape but for the channels");
      shape[1] += input[1];
    }
    return shape;
  }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    if (saved) {
      saved->numbers.clear();
      for (const at::Tensor& input : inputs) saved->numbers.push_back(input.size(1));
    }
    return at::cat(at::TensorList(inputs.data(), inputs.size()), 1);
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved& saved,
                                         std::span<const bool> needs) const override {
    std::vector<at::Tensor> gradients;
    std::int64_t from = 0;
    for (std::size_t i = 0; i < saved.numbers.size(); ++i) {
      // A dense gradient, as after a message: some kernels add strided gradients in another order.
      gradients.push_back(needs[i] ? grad.narrow(1, from, saved.numbers[i]).contiguous() : at::Tensor());
      from += saved.numbers[i];
    }
    return gradients;
  }
};

class ScaleChannels final : public Layer {
 public:
  std::string kind() const override { return "scale_channels"; }
  CastPolicy cast_policy() const override { return CastPolicy::Promote; }
  bool like(const Layer&) const override { return true; }
  bool folds() const override { return true; }
  Shape output_shape(std::span<const Shape> inputs) const override {
    const Shape& x = inputs[0];
    if (x.size() != 4) throw_bad_shape("scale_channels", x, "[B, C, H, W]");
    if (inputs.size() != 2 || inputs[1] != Shape{x[0], x[1], 1, 1})
      throw_bad_shape("scale_channels", inputs.back(), "a second input [B, C, 1, 1]");
    return x;
  }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    if (saved) saved->tensors = {inputs[0], inputs[1]};
    return at::mul(inputs[0], inputs[1]);
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved& saved,
                                         std::span<const bool> needs) const override {
    const at::Tensor &x = saved.tensors[0], &factor = saved.tensors[1];
    const std::int64_t places[] = {2, 3};
    // A plane of one pixel needs no sum.
    const auto summed = [&](at::Tensor t) {
      return t.sizes() == factor.sizes() ? t : at::sum(t, places, true);
    };
    return {needs[0] ? at::mul(grad, factor) : at::Tensor(),
            needs[1] ? summed(at::mul(grad, x)) : at::Tensor()};
  }
};

/// PReLU of one job, or of many: every tensor then has a leading job dimension.
class PRelu final : public Layer {
 public:
  enum class Of { Job, Jobs };
  PRelu(std::int64_t parameters, double initial, Of of)
      : parameters_(parameters), initial_(initial), first_(of == Of::Jobs ? 1 : 0) {}
  std::string kind() const override { return "prelu"; }
  bool like(const Layer& other) const override {
    return parameters_ == static_cast<const PRelu&>(other).parameters_;
  }
  LayerPtr over_jobs(std::int64_t) const override {
    return std::make_shared<PRelu>(parameters_, initial_, Of::Jobs);
  }
  std::vector<ParameterSpec> parameters() const override {
    return {{.name = "weight", .shape = {parameters_}, .init = Init::Constant, .a = initial_}};
  }
  Shape output_shape(std::span<const Shape> inputs) const override {
    const Shape& x = inputs[0];
    if (x.size() < 2 || (parameters_ != 1 && x[1] != parameters_))
      throw_bad_shape("prelu", x, "[B, " + (parameters_ == 1 ? "C" : std::to_string(parameters_)) + ", ...]");
    return x;
  }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> p, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    if (saved) saved->tensors = {inputs[0]};
    return at::_prelu_kernel(inputs[0], by_channel(p[0], inputs[0]));
  }
  /// Returns the input's gradient. One kernel computes both gradients; the weight's is kept in `saved`.
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor> p, Saved& saved,
                                         std::span<const bool>) const override {
    const at::Tensor weight = by_channel(p[0], grad);
    auto [of_input, of_weight] = at::_prelu_kernel_backward(grad, saved.tensors[0], weight);
    saved.tensors = {at::sum_to(std::move(of_weight), weight.sizes())};
    return {of_input};
  }
  void backward_weight(const at::Tensor&, Saved& saved, std::span<at::Tensor> grads) const override {
    grads[0].add_(saved.tensors[0].view(grads[0].sizes()));
  }

 private:
  /// Returns the weight as [1, C or 1, 1, ...], with a leading job dimension if there are several jobs.
  at::Tensor by_channel(const at::Tensor& weight, const at::Tensor& x) const {
    Shape shape(static_cast<std::size_t>(x.dim()), 1);
    if (first_ == 1) shape[0] = weight.size(0);
    shape[first_ + 1] = parameters_;
    return weight.reshape(shape);
  }
  std::int64_t parameters_;
  double initial_;
  std::size_t first_;  ///< index of the sample dimension
};

class GroupNorm final : public Layer {
 public:
  GroupNorm(std::int64_t groups, std::int64_t channels, const GroupNormOptions& options)
      : groups_(groups), channels_(channels), o_(options) {
    MILLRACE_CHECK(groups > 0 && channels % groups == 0, channels << " channels in " << groups << " groups");
  }
  std::string kind() const override { return groups_ == channels_ ? "instance_norm" : "group_norm"; }
  CastPolicy cast_policy() const override { return CastPolicy::Float32; }
  bool like(const Layer& other) const override {
    const auto& o = static_cast<const GroupNorm&>(other);
    return groups_ == o.groups_ && channels_ == o.channels_ && o_.epsilon == o.o_.epsilon &&
           o_.affine == o.o_.affine;
  }
  LayerPtr over_jobs(std::int64_t) const override { return group_norm_over_jobs(groups_, o_.epsilon); }
  std::vector<ParameterSpec> parameters() const override {
    if (!o_.affine) return {};
    return {{.name = "weight", .shape = {channels_}, .init = Init::Ones, .kind = ParameterKind::Norm},
            {.name = "bias", .shape = {channels_}, .kind = ParameterKind::Norm}};
  }
  Shape output_shape(std::span<const Shape> inputs) const override {
    const Shape& x = inputs[0];
    if (x.size() < 2 || x[1] != channels_)
      throw_bad_shape(kind(), x, "[B, " + std::to_string(channels_) + ", ...]");
    std::int64_t elements = channels_ / groups_;
    for (std::size_t d = 2; d < x.size(); ++d) elements *= x[d];
    if (elements < 2) throw_bad_shape(kind(), x, "more than one element to normalise over in each group");
    return x;
  }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> p, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    return normalise_groups(inputs[0], p, groups_, o_.epsilon, saved);
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor> p, Saved& saved,
                                         std::span<const bool> needs) const override {
    return {group_gradients(grad, p, groups_, saved, needs[0])};
  }
  void backward_weight(const at::Tensor&, Saved& saved, std::span<at::Tensor> grads) const override {
    for (std::size_t i = 0; i < grads.size(); ++i) grads[i].add_(saved.tensors[i]);
  }

 private:
  std::int64_t groups_, channels_;
  GroupNormOptions o_;
};

/// The layer of a function y = f(x) whose derivative depends on x alone.
template <class Function>
class Activation final : public Layer {
 public:
  std::string kind() const override { return Function::kKind; }
  CastPolicy cast_policy() const override { return CastPolicy::Promote; }
  bool like(const Layer&) const override { return true; }
  bool folds() const override { return true; }
  Shape output_shape(std::span<const Shape> inputs) const override { return inputs[0]; }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    if (saved) saved->tensors = {inputs[0]};
    return Function::forward(inputs[0]);
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved& saved,
                                         std::span<const bool>) const override {
    return {Function::backward(grad, saved.tensors[0])};
  }
};

struct Relu6 {
  static constexpr const char* kKind = "relu6";
  static at::Tensor forward(const at::Tensor& x) { return at::hardtanh(x, 0, 6); }
  static at::Tensor backward(const at::Tensor& grad, const at::Tensor& x) {
    return at::hardtanh_backward(grad, x, 0, 6);
  }
};

struct HardSigmoid {
  static constexpr const char* kKind = "hard_sigmoid";
  static at::Tensor forward(const at::Tensor& x) { return at::hardsigmoid(x); }
  static at::Tensor backward(const at::Tensor& grad, const at::Tensor& x) {
    return at::hardsigmoid_backward(grad, x);
  }
};

struct HardSwish {
  static constexpr const char* kKind = "hard_swish";
  static at::Tensor forward(const at::Tensor& x) { return at::hardswish(x); }
  static at::Tensor backward(const at::Tensor& grad, const at::Tensor& x) {
    return at::hardswish_backward(grad, x);
  }
};

}  // namespace

LayerPtr avg_pool2d(const AvgPoolOptions& options) {
  return std::make_shared<AvgPool2d>(options);
}
LayerPtr concat() {
  return std::make_shared<Concat>();
}
LayerPtr scale_channels() {
  return std::make_shared<ScaleChannels>();
}
LayerPtr prelu(std::int64_t parameters, double initial) {
  return std::make_shared<PRelu>(parameters, initial, PRelu::Of::Job);
}
LayerPtr group_norm(std::int64_t groups, std::int64_t channels, const GroupNormOptions& options) {
  return std::make_shared<GroupNorm>(groups, channels, options);
}
LayerPtr instance_norm(std::int64_t channels, const GroupNormOptions& options) {
  return group_norm(channels, channels, options);
}
LayerPtr relu6() {
  return std::make_shared<Activation<Relu6>>();
}
LayerPtr hard_sigmoid() {
  return std::make_shared<Activation<HardSigmoid>>();
}
LayerPtr hard_swish() {
  return std::make_shared<Activation<HardSwish>>();
}

}  // namespace millrace
