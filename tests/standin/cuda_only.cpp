// Operators that exist for CUDA alone, or that choose among kernels by what a GPU has: bodies in operators of
// ATen. They run on GPU tensors, so each step of them is computed as operators.cpp says.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "counts.h"

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using standin::counts::One;

Tensor sum_of_gates(const Tensor& input, const Tensor& hidden, const OptionalTensor& input_bias,
                    const OptionalTensor& hidden_bias) {
  Tensor sum = at::add(hidden, input);
  if (hidden_bias && hidden_bias->defined()) sum.add_(*hidden_bias);
  if (input_bias && input_bias->defined()) sum.add_(*input_bias);
  return sum;
}

/// (h, c, the four gates as the backward wants them).
std::tuple<Tensor, Tensor, Tensor> lstm(const Tensor& input, const Tensor& hidden, const Tensor& cx,
                                        const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const One counted("aten::_thnn_fused_lstm_cell");
  const Tensor gates = sum_of_gates(input, hidden, input_bias, hidden_bias);
  const auto parts = gates.chunk(4, 1);
  const Tensor i = at::sigmoid(parts[0]), f = at::sigmoid(parts[1]), g = at::tanh(parts[2]),
               o = at::sigmoid(parts[3]);
  const Tensor c = (f * cx).add_(i * g);
  return {o * at::tanh(c), c, at::cat({i, f, g, o}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_backward(const OptionalTensor& grad_h, const OptionalTensor& grad_c,
                                                 const Tensor& cx, const Tensor& cy, const Tensor& workspace,
                                                 bool has_bias) {
  const One counted("aten::_thnn_fused_lstm_cell_backward_impl");
  const auto parts = workspace.chunk(4, 1);
  const Tensor &i = parts[0], &f = parts[1], &g = parts[2], &o = parts[3];
  const Tensor tanh_c = at::tanh(cy);
  const Tensor gh = grad_h && grad_h->defined() ? *grad_h : at::zeros_like(cx);
  Tensor gc = gh * o * (1 - tanh_c * tanh_c);
  if (grad_c && grad_c->defined()) gc = gc + *grad_c;
  const Tensor gates = at::cat(
      {gc * g * i * (1 - i), gc * cx * f * (1 - f), gc * i * (1 - g * g), gh * tanh_c * o * (1 - o)}, 1);
  return {gates, gc * f, has_bias ? gates.sum(0) : Tensor()};
}

/// (h, what the backward wants: reset, update, new, the old h, the hidden part of new).
std::tuple<Tensor, Tensor> gru(const Tensor& input, const Tensor& hidden, const Tensor& hx,
                               const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const One counted("aten::_thnn_fused_gru_cell");
  const Tensor in = input_bias && input_bias->defined() ? input + *input_bias : input;
  const Tensor of = hidden_bias && hidden_bias->defined() ? hidden + *hidden_bias : hidden;
  const auto x = in.chunk(3, 1), h = of.chunk(3, 1);
  const Tensor reset = at::sigmoid(x[0] + h[0]), update = at::sigmoid(x[1] + h[1]);
  const Tensor fresh = at::tanh(x[2] + reset * h[2]);
  return {(hx - fresh) * update + fresh, at::cat({reset, update, fresh, hx, h[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_backward(const Tensor& grad, const Tensor& workspace,
                                                                bool has_bias) {
  const One counted("aten::_thnn_fused_gru_cell_backward");
  const auto parts = workspace.chunk(5, 1);
  const Tensor &reset = parts[0], &update = parts[1], &fresh = parts[2], &hx = parts[3], &hidden = parts[4];
  const Tensor of_update = grad * (hx - fresh) * update * (1 - update);
  const Tensor of_fresh = grad * (1 - update) * (1 - fresh * fresh);
  const Tensor of_reset = of_fresh * hidden * reset * (1 - reset);
  const Tensor input = at::cat({of_reset, of_update, of_fresh}, 1);
  const Tensor hidden_gates = at::cat({of_reset, of_update, of_fresh * reset}, 1);
  return {input, hidden_gates, grad * update, has_bias ? input.sum(0) : Tensor(),
          has_bias ? hidden_gates.sum(0) : Tensor()};
}

std::tuple<Tensor, Tensor> dropout(const Tensor& self, double keep, std::optional<at::Generator> generator) {
  const One counted("aten::_fused_dropout");
  const Tensor mask =
      at::empty_like(self, self.options().dtype(at::kByte)).bernoulli_(keep, std::move(generator));
  return {self * mask * (1.0 / keep), mask};
}
Tensor scaled(const Tensor& self, const Tensor& mask, double scale) {
  const One counted("aten::_masked_scale");
  return self * mask * scale;
}

std::tuple<Tensor, Tensor> native_dropout(const Tensor& self, double p, std::optional<bool> train) {
  const One counted("aten::native_dropout");
  if (!train.value_or(true)) return {self.clone(), at::ones_like(self, self.options().dtype(at::kBool))};
  const Tensor mask = at::empty_like(self, self.options().dtype(at::kBool)).bernoulli_(1 - p);
  return {p < 1 ? self * mask * (1.0 / (1 - p)) : at::zeros_like(self), mask};
}
Tensor native_dropout_backward(const Tensor& grad, const Tensor& mask, double scale) {
  const One counted("aten::native_dropout_backward");
  return grad * mask * scale;
}

/// The way without a kernel of CUDA's own.
std::int64_t attention(const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&, double, bool,
                       std::optional<double>, bool) {
  return 0;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm));
  library.impl("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(lstm_backward));
  library.impl("_thnn_fused_gru_cell", TORCH_FN(gru));
  library.impl("_thnn_fused_gru_cell_backward", TORCH_FN(gru_backward));
  library.impl("_fused_dropout", TORCH_FN(dropout));
  library.impl("_masked_scale", TORCH_FN(scaled));
  library.impl("native_dropout", TORCH_FN(native_dropout));
  library.impl("native_dropout_backward", TORCH_FN(native_dropout_backward));
  library.impl("_fused_sdp_choice", TORCH_FN(attention));
}
