#include "runtime/layers/image_layers.h"

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

#include "runtime/base/error.h"
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
      // Dense, as it would be after a message: some kernels add up strided gradients in another order.
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
    // A plane of one pixel has nothing to add up.
    const auto summed = [&](at::Tensor t) {
      return t.sizes() == factor.sizes() ? t : at::sum(t, places, true);
    };
    return {needs[0] ? at::mul(grad, factor) : at::Tensor(),
            needs[1] ? summed(at::mul(grad, x)) : at::Tensor()};
  }
};

/// y = f(x) with f'(x) known from x alone.
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
