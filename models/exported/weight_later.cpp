#include "models/exported/weight_later.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/linear.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <utility>

#include "runtime/kernels/linear_kernels.h"

namespace millrace {
namespace {

class WeightLater final : public torch::autograd::Node {
 public:
  WeightLater(SplitCall call, PendingWeights* pending) : call_(std::move(call)), pending_(pending) {}

  std::string name() const override { return "WeightLater"; }

 private:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    at::NoGradGuard no_grad;
    torch::autograd::variable_list result(1);
    const at::Tensor& grad = grads[0];
    if (!grad.defined()) return result;
    if (task_should_compute_output(0)) result[0] = call_.input_gradient(grad);
    if (call_.add_weight_gradient) pending_->all.push_back({grad, std::move(call_.add_weight_gradient)});
    call_ = {};
    return result;
  }

  SplitCall call_;
  PendingWeights* pending_;
};

at::Tensor plain(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.detach() : tensor;
}

at::Tensor rows(const at::Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}

}  // namespace

at::Tensor run_split(const SplitCall& call, const at::Tensor& input, PendingWeights* pending) {
  at::Tensor output;
  {
    at::NoGradGuard no_grad;
    output = call.forward();
  }
  const bool passes = call.input_gradient && input.requires_grad();
  if (!at::GradMode::is_enabled() || !(passes || call.add_weight_gradient)) return output;
  auto node = std::shared_ptr<WeightLater>(new WeightLater(call, pending), torch::autograd::deleteNode);
  node->set_next_edges({passes ? torch::autograd::impl::gradient_edge(input) : torch::autograd::Edge()});
  torch::autograd::set_history(output, node);
  return output;
}

SplitCall split_linear(at::Tensor x, at::Tensor w, at::Tensor b, WeightPlaces places) {
  x = plain(x), w = plain(w), b = plain(b);
  // In float32 on the CPU, the kernels of millrace's own linear layers give the same bits as these functions.
  const bool by_kernels = b.defined() && x.dim() >= 2 && x.is_contiguous() && x.scalar_type() == at::kFloat &&
                          x.device().is_cpu();
  const auto in_shape_of = [](const at::Tensor& flat, const at::Tensor& like) {
    Shape shape = like.sizes().vec();
    shape.back() = flat.size(1);
    return flat.view(shape);
  };
  return {.forward =
              [=] {
                if (!by_kernels) return at::linear(x, w, b);
                return in_shape_of(linear_forward(rows(x), w, b, {}), x);
              },
          .input_gradient =
              [=](const at::Tensor& grad) {
                if (!by_kernels) return grad.matmul(w);
                return in_shape_of(linear_input_gradient(rows(grad), w), grad);
              },
          .add_weight_gradient =
              [=](const at::Tensor& grad, std::span<at::Tensor> grads) {
                const at::Tensor flat = rows(grad);
                at::Tensor *of_w = places.weight >= 0 ? &grads[places.weight] : nullptr,
                           *of_b = places.bias >= 0 ? &grads[places.bias] : nullptr;
                if (by_kernels && of_w && of_b) return add_linear_gradients_(rows(x), flat, *of_w, *of_b);
                if (of_w) add_weight_gradient_(rows(x), flat, *of_w);
                if (of_b) of_b->add_(flat.sum(0));
              }};
}

SplitCall split_addmm(at::Tensor b, at::Tensor x, at::Tensor w, WeightPlaces places) {
  x = plain(x), w = plain(w), b = plain(b);
  return {.forward = [=] { return at::addmm(b, x, w); },
          .input_gradient = [=](const at::Tensor& grad) { return grad.mm(w.t()); },
          .add_weight_gradient =
              [=](const at::Tensor& grad, std::span<at::Tensor> grads) {
                if (places.weight >= 0) add_weight_gradient_(grad, x, grads[places.weight]);
                if (places.bias >= 0) grads[places.bias].add_(grad.sum(0));
              }};
}

SplitCall split_convolution(at::Tensor x, at::Tensor w, at::Tensor b, ConvolutionNumbers numbers,
                            WeightPlaces places) {
  x = plain(x), w = plain(w), b = plain(b);
  const std::vector<std::int64_t> zeros(numbers.stride.size(), 0);
  const auto backward = [=](const at::Tensor& grad, std::array<bool, 3> mask) {
    std::vector<std::int64_t> bias_sizes{w.size(0)};
    return at::convolution_backward(
        grad, x, w, b.defined() ? at::OptionalIntArrayRef(bias_sizes) : std::nullopt, numbers.stride,
        numbers.padding, numbers.dilation, false, zeros, numbers.groups, mask);
  };
  return {.forward =
              [=] {
                return at::convolution(x, w, b, numbers.stride, numbers.padding, numbers.dilation, false,
                                       zeros, numbers.groups);
              },
          .input_gradient =
              [=](const at::Tensor& grad) {
                return std::get<0>(backward(grad, {true, false, false}));
              },
          .add_weight_gradient =
              [=](const at::Tensor& grad, std::span<at::Tensor> grads) {
                auto [unused, weight, bias] = backward(grad, {false, places.weight >= 0, places.bias >= 0});
                if (places.weight >= 0) grads[places.weight].add_(weight);
                if (places.bias >= 0) grads[places.bias].add_(bias);
              }};
}

SplitCall split_embedding(at::Tensor w, at::Tensor indices, std::int64_t padding, WeightPlaces places) {
  w = plain(w);
  return {
      .forward = [=] { return at::embedding(w, indices, padding); },
      .input_gradient = {},
      .add_weight_gradient =
          [=](const at::Tensor& grad, std::span<at::Tensor> grads) {
            grads[places.weight].add_(at::embedding_dense_backward(grad, indices, w.size(0), padding, false));
          }};
}

}  // namespace millrace
