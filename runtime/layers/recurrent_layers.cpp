#include "runtime/layers/recurrent_layers.h"

#include <cmath>

#include <ATen/ops/_thnn_fused_lstm_cell.h>
#include <ATen/ops/_thnn_fused_lstm_cell_backward_impl.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "runtime/kernels/linear_kernels.h"
#include "runtime/layers/carrying_layer.h"
#include "runtime/layers/dropout_mask.h"
#include "runtime/layers/shape_errors.h"

namespace millrace {
namespace {

constexpr std::size_t kWeights = 4;  // weight_ih, weight_hh, bias_ih, bias_hh

std::vector<ParameterSpec> lstm_parameters(const LstmOptions& o, const std::string& suffix) {
  const double a = o.range > 0 ? o.range : 1 / std::sqrt(double(o.hidden));
  const std::int64_t rows = 4 * o.hidden;
  return {
      {.name = "weight_ih_l0" + suffix, .shape = {rows, o.in}, .init = Init::Uniform, .a = a},
      {.name = "weight_hh_l0" + suffix, .shape = {rows, o.hidden}, .init = Init::Uniform, .a = a},
      {.name = "bias_ih_l0" + suffix,
       .shape = {rows},
       .init = o.zero_input_bias ? Init::Zeros : Init::Uniform,
       .a = a,
       .kind = ParameterKind::Bias},
      {.name = "bias_hh_l0" + suffix,
       .shape = {rows},
       .init = o.zero_hidden_bias ? Init::Zeros : Init::Uniform,
       .a = a,
       .kind = ParameterKind::Bias},
  };
}

/// The tensors of a step that the backward needs: sigmoid of input and forget gate [B, 2H], tanh of the cell
/// gate, sigmoid of the output gate, the state and its tanh, each [B, H].
enum Kept : std::size_t { kInputForget, kCell, kOutput, kState, kStateTanh, kKeptPerStep };

at::Tensor part(const at::Tensor& gates, std::int64_t first, std::int64_t count, std::int64_t hidden) {
  return gates.narrow(-1, first * hidden, count * hidden);
}

/// Returns added + a b, for one job, or for several with a leading dimension.
at::Tensor plus_product(const at::Tensor& added, const at::Tensor& a, const at::Tensor& b) {
  return a.dim() == 2 ? at::addmm(added, a, b) : at::baddbmm(added, a, b);
}

at::Tensor rows(const at::Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}

/// On a GPU, one operator does everything after a step's products. It keeps other tensors than Kept: the four
/// gates [(jobs) B, 4H] and the state [(jobs,) B, H].
enum FusedKept : std::size_t { kFusedGates, kFusedState, kFusedKeptPerStep };

bool has_fused_cell(const at::Tensor& x) {
  return x.is_cuda();
}

/// Runs one step of the fused operator. Replaces `state` by the next one. Returns the gates.
at::Tensor fused_cell(const at::Tensor& from_input, const at::Tensor& from_state, LstmState& state) {
  auto [h, c, gates] = at::_thnn_fused_lstm_cell(rows(from_input), rows(from_state), rows(state.c), {}, {});
  state = {h.view(state.c.sizes()), c.view(state.c.sizes())};
  return gates;
}

/// Replaces an undefined state by zeros. Returns the state's contribution to the gates, shaped like
/// `from_input`.
at::Tensor gates_from_state(const at::Tensor& from_input, const at::Tensor& weight_hh, LstmState& state) {
  if (state.h.defined()) return at::matmul(state.h, weight_hh.transpose(-1, -2));
  Shape shape = from_input.sizes().vec();
  shape.back() = weight_hh.size(-1);
  state.c = at::zeros(shape, from_input.options());
  return at::zeros(from_input.sizes(), from_input.options());
}

/// Does the same as walk(), with FusedKept.
at::Tensor walk_fused(const at::Tensor& from_input, const at::Tensor& weight_hh, LstmState& state,
                      std::vector<at::Tensor>* kept) {
  const at::Tensor inputs = from_input.contiguous();
  std::vector<at::Tensor> outputs;
  for (std::int64_t t = 0; t < inputs.size(0); ++t) {
    const at::Tensor from_state = gates_from_state(inputs[t], weight_hh, state);
    at::Tensor gates = fused_cell(inputs[t], from_state, state);
    outputs.push_back(state.h);
    if (!kept) continue;
    kept->push_back(std::move(gates));
    kept->push_back(state.c);
  }
  return at::stack(outputs);
}

/// Runs all steps: the inputs' part of the gates [T, (jobs,) B, 4H], weight_hh [(jobs,) 4H, H] -> h [T,
/// (jobs,) B, H]. It appends each step's Kept tensors to `kept` unless that is null. `state` is the state
/// before the first step (undefined: zero), and becomes the state after the last. Differentiable.
at::Tensor walk(const at::Tensor& from_input, const at::Tensor& weight_hh, LstmState& state,
                std::vector<at::Tensor>* kept) {
  if (has_fused_cell(from_input)) return walk_fused(from_input, weight_hh, state, kept);
  const std::int64_t steps = from_input.size(0), hidden = weight_hh.size(-1);
  const auto plus_state = [&](const at::Tensor& added) {
    return weight_hh.dim() == 2 ? plus_linear(added, state.h, weight_hh)
                                : at::baddbmm(added, state.h, weight_hh.transpose(1, 2));
  };
  std::vector<at::Tensor> outputs;
  for (std::int64_t t = 0; t < steps; ++t) {
    const at::Tensor gates =  // [(jobs,) B, 4H]
        state.h.defined() ? plus_state(from_input[t]) : from_input[t];
    at::Tensor input_forget = at::sigmoid(part(gates, 0, 2, hidden));
    at::Tensor cell = at::tanh(part(gates, 2, 1, hidden));
    at::Tensor output = at::sigmoid(part(gates, 3, 1, hidden));
    const at::Tensor input = part(input_forget, 0, 1, hidden);
    state.c = state.c.defined() ? at::addcmul(at::mul(part(input_forget, 1, 1, hidden), state.c), input, cell)
                                : at::mul(input, cell);
    at::Tensor state_tanh = at::tanh(state.c);
    state.h = at::mul(output, state_tanh);
    outputs.push_back(state.h);
    if (kept) {
      for (at::Tensor* one : {&input_forget, &cell, &output}) kept->push_back(std::move(*one));
      kept->push_back(state.c);
      kept->push_back(std::move(state_tanh));
    }
  }
  return at::stack(outputs);
}

/// x [T, B, I] -> h [T, B, H]; `state` and `kept` are as in walk().
at::Tensor run(const at::Tensor& x, std::span<const at::Tensor> p, LstmState& state,
               std::vector<at::Tensor>* kept) {
  const std::int64_t steps = x.size(0), batch = x.size(1);
  const at::Tensor gates =
      linear_forward(x.reshape({steps * batch, x.size(2)}), p[0], at::add(p[2], p[3]), {});
  return walk(gates.view({steps, batch, p[0].size(0)}), p[1], state, kept);
}

at::Tensor run(const at::Tensor& x, std::span<const at::Tensor> p, std::vector<at::Tensor>* kept) {
  LstmState from_zero;
  return run(x, p, from_zero, kept);
}

/// Does the same as gate_gradients(), with FusedKept.
at::Tensor fused_gate_gradients(const at::Tensor& grad, const at::Tensor& weight_hh,
                                std::span<const at::Tensor> kept, const at::Tensor& first) {
  const auto steps = static_cast<std::size_t>(grad.size(0));
  Shape shape = grad[0].sizes().vec();
  shape.back() *= 4;
  std::vector<at::Tensor> result(steps);
  at::Tensor of_state;
  for (std::size_t t = steps; t-- > 0;) {
    const at::Tensor here = grad[static_cast<std::int64_t>(t)];
    const at::Tensor of_output = t + 1 == steps ? here : plus_product(here, result[t + 1], weight_hh);
    const at::Tensor& gates = kept[t * kFusedKeptPerStep + kFusedGates];
    const at::Tensor& state = kept[t * kFusedKeptPerStep + kFusedState];
    at::Tensor before = t == 0 ? first : kept[(t - 1) * kFusedKeptPerStep + kFusedState];
    if (!before.defined()) before = at::zeros_like(state);
    const auto [of_gates, of_before, of_bias] = at::_thnn_fused_lstm_cell_backward_impl(
        rows(of_output), of_state, rows(before), rows(state), gates, /*has_bias=*/false);
    result[t] = of_gates.view(shape);
    of_state = of_before;
  }
  return at::stack(result);
}

/// Returns the gradient of the gates before their functions [T, (jobs,) B, 4H], given the gradient of the
/// outputs [T, (jobs,) B, H]. `first` is the state c before the first step; undefined: zero.
at::Tensor gate_gradients(const at::Tensor& grad, const at::Tensor& weight_hh,
                          std::span<const at::Tensor> kept, const at::Tensor& first = {}) {
  if (has_fused_cell(grad)) return fused_gate_gradients(grad, weight_hh, kept, first);
  const std::int64_t steps = grad.size(0), hidden = grad.size(-1);
  Shape shape = grad.sizes().vec();
  shape.back() *= 4;
  at::Tensor result = at::empty(shape, grad.options());
  at::Tensor of_state;
  for (std::int64_t t = steps; t-- > 0;) {
    const std::span<const at::Tensor> step =
        kept.subspan(static_cast<std::size_t>(t) * kKeptPerStep, kKeptPerStep);
    const at::Tensor of_output = t + 1 == steps ? grad[t] : plus_product(grad[t], result[t + 1], weight_hh);
    const at::Tensor through_tanh = at::tanh_backward(at::mul(of_output, step[kOutput]), step[kStateTanh]);
    of_state = of_state.defined() ? at::add(of_state, through_tanh) : through_tanh;
    const at::Tensor here = result[t];
    at::Tensor input = part(here, 0, 1, hidden), forget = part(here, 1, 1, hidden),
               cell = part(here, 2, 1, hidden), output = part(here, 3, 1, hidden);
    const at::Tensor input_gate = part(step[kInputForget], 0, 1, hidden),
                     forget_gate = part(step[kInputForget], 1, 1, hidden);
    at::sigmoid_backward_out(output, at::mul(of_output, step[kStateTanh]), step[kOutput]);
    at::sigmoid_backward_out(input, at::mul(of_state, step[kCell]), input_gate);
    at::tanh_backward_out(cell, at::mul(of_state, input_gate), step[kCell]);
    const at::Tensor& state_before =
        t == 0 ? first : kept[static_cast<std::size_t>(t - 1) * kKeptPerStep + kState];
    if (!state_before.defined()) {
      forget.zero_();
      break;
    }
    at::sigmoid_backward_out(forget, at::mul(of_state, state_before), forget_gate);
    of_state = at::mul(of_state, forget_gate);
  }
  return result;
}

at::Tensor input_gradient(const at::Tensor& of_gates, const at::Tensor& weight_ih) {
  return linear_input_gradient(rows(of_gates), weight_ih)
      .view({of_gates.size(0), of_gates.size(1), weight_ih.size(1)});
}

/// Adds the weight gradients. `x` and `h` are the inputs and outputs of all steps. `first` is h before the
/// first step; undefined: zero.
void add_weight_gradients(const at::Tensor& of_gates, const at::Tensor& x, const at::Tensor& h,
                          std::span<at::Tensor> grads, const at::Tensor& first = {}) {
  const std::int64_t steps = x.size(0);
  add_weight_gradient_(rows(x), rows(of_gates), grads[0]);
  if (first.defined()) {
    const at::Tensor before = at::cat({first.unsqueeze(0), h.narrow(0, 0, steps - 1)});
    add_weight_gradient_(rows(before), rows(of_gates), grads[1]);
  } else if (steps > 1) {
    add_weight_gradient_(rows(h.narrow(0, 0, steps - 1)), rows(of_gates.narrow(0, 1, steps - 1)), grads[1]);
  }
  const at::Tensor bias = at::sum(rows(of_gates), 0);
  grads[2].add_(bias);
  grads[3].add_(bias);
}

void check_input(const char* layer, std::span<const Shape> inputs, std::int64_t in) {
  if (inputs[0].size() != 3 || inputs[0][2] != in)
    throw_bad_shape(layer, inputs[0], "[T, B, " + std::to_string(in) + "]");
}

/// The LSTM of B jobs: x [B, T, N, I] -> h [B, T, N, H]. A step of all jobs is one batched product.
class LstmOfJobs final : public Layer {
 public:
  std::string kind() const override { return "lstm"; }
  Shape output_shape(std::span<const Shape> inputs) const override { return inputs[0]; }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> p, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    const at::Tensor x = rows_of_jobs(inputs[0]);
    const at::Tensor from_input =
        at::baddbmm(at::add(p[2], p[3]).unsqueeze(1), x, p[0].transpose(1, 2))
            .view({inputs[0].size(0), inputs[0].size(1), inputs[0].size(2), p[0].size(1)})
            .transpose(0, 1);  // [T, B, N, 4H]
    std::vector<at::Tensor> kept;
    LstmState from_zero;
    const at::Tensor output = walk(from_input, p[1], from_zero, saved ? &kept : nullptr).transpose(0, 1);
    if (saved) {
      kept.push_back(x);
      kept.push_back(output);
      saved->tensors = std::move(kept);
    }
    return output;
  }
  /// Saves the same tensors for backward_weight as Lstm does.
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor> p, Saved& saved,
                                         std::span<const bool> needs) const override {
    const std::span<const at::Tensor> kept(saved.tensors);
    const at::Tensor of_gates =
        rows_of_jobs(gate_gradients(grad.transpose(0, 1), p[1], kept.first(kept.size() - 2)).transpose(0, 1));
    saved.tensors.erase(saved.tensors.begin(), saved.tensors.end() - 2);
    saved.tensors.push_back(of_gates);
    if (!needs[0]) return {at::Tensor()};
    return {at::bmm(of_gates, p[0]).view({grad.size(0), grad.size(1), grad.size(2), p[0].size(2)})};
  }
  void backward_weight(const at::Tensor&, Saved& saved, std::span<at::Tensor> grads) const override {
    const at::Tensor &x = saved.tensors[0], &output = saved.tensors[1], &of_gates = saved.tensors[2];
    grads[0].add_(at::bmm(of_gates.transpose(1, 2), x));
    const std::int64_t samples = output.size(2),
                       later = x.size(1) - samples;  // rows of steps after the first
    if (later > 0)
      grads[1].add_(at::bmm(of_gates.narrow(1, samples, later).transpose(1, 2),
                            rows_of_jobs(output).narrow(1, 0, later)));
    const at::Tensor bias = at::sum(of_gates, 1);
    grads[2].add_(bias);
    grads[3].add_(bias);
  }

 private:
  /// [B, T, N, F] -> [B, T N, F].
  static at::Tensor rows_of_jobs(const at::Tensor& x) { return x.reshape({x.size(0), -1, x.size(3)}); }
};

class Lstm final : public Layer {
 public:
  explicit Lstm(const LstmOptions& options) : o_(options) {}
  std::string kind() const override { return "lstm"; }
  CastPolicy cast_policy() const override { return CastPolicy::Lower; }
  bool like(const Layer& other) const override {
    const LstmOptions& o = static_cast<const Lstm&>(other).o_;
    return o_.in == o.in && o_.hidden == o.hidden;
  }
  LayerPtr over_jobs(std::int64_t) const override { return std::make_shared<LstmOfJobs>(); }
  std::vector<ParameterSpec> parameters() const override { return lstm_parameters(o_, ""); }
  Shape output_shape(std::span<const Shape> inputs) const override {
    check_input("lstm", inputs, o_.in);
    return {inputs[0][0], inputs[0][1], o_.hidden};
  }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> p, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    if (!saved) return run(inputs[0], p, nullptr);
    saved->tensors.clear();
    at::Tensor output = run(inputs[0], p, &saved->tensors);
    saved->tensors.push_back(inputs[0]);
    saved->tensors.push_back(output);
    return output;
  }
  /// Returns the input's gradient. Saves the gates' gradients, the inputs and the outputs for
  /// backward_weight.
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor> p, Saved& saved,
                                         std::span<const bool> needs) const override {
    const std::span<const at::Tensor> kept(saved.tensors);
    at::Tensor of_gates = gate_gradients(grad, p[1], kept.first(kept.size() - 2));
    saved.tensors.erase(saved.tensors.begin(), saved.tensors.end() - 2);
    std::vector<at::Tensor> result{needs[0] ? input_gradient(of_gates, p[0]) : at::Tensor()};
    saved.tensors.push_back(std::move(of_gates));
    return result;
  }
  void backward_weight(const at::Tensor&, Saved& saved, std::span<at::Tensor> grads) const override {
    add_weight_gradients(saved.tensors[2], saved.tensors[0], saved.tensors[1], grads);
  }

 private:
  LstmOptions o_;
};

class CarriedLstm final : public CarryingLayer {
 public:
  explicit CarriedLstm(const CarriedLstmOptions& options) : o_(options) {}
  std::string kind() const override { return "carried_lstm"; }
  bool draws() const override { return o_.weight_drop > 0; }
  CastPolicy cast_policy() const override { return CastPolicy::Lower; }
  std::vector<ParameterSpec> parameters() const override {
    std::vector<ParameterSpec> specs = lstm_parameters(o_.sizes, "");
    specs[1].name += "_raw";
    return specs;
  }
  std::vector<CarriedSpec> carried() const override {
    return {{"h", {o_.sizes.hidden}}, {"c", {o_.sizes.hidden}}};
  }
  Shape output_shape(std::span<const Shape> inputs) const override {
    check_input("carried_lstm", inputs, o_.sizes.in);
    return {inputs[0][0], inputs[0][1], o_.sizes.hidden};
  }
  at::Tensor forward_from(std::span<const at::Tensor> inputs, std::span<const at::Tensor> p,
                          std::span<at::Tensor> state, const CallContext& context,
                          Saved* saved) const override {
    const at::Tensor& x = inputs[0];
    const auto as_input = [&](const at::Tensor& t) { return t.defined() ? t.to(x.scalar_type()) : t; };
    const LstmState before{as_input(state[0]), as_input(state[1])};
    std::vector<at::Tensor> weights(p.begin(), p.end());
    at::Tensor mask;
    if (context.training && o_.weight_drop > 0) {
      mask = dropout_mask(p[1], o_.weight_drop, context.random_seed, context.masks);
      weights[1] = at::mul(p[1], mask);
    }
    LstmState after = before;
    std::vector<at::Tensor> kept;
    at::Tensor output = run(x, weights, after, saved ? &kept : nullptr);
    state[0] = after.h;
    state[1] = after.c;
    if (saved) {
      saved->tensors = {x, output, mask, before.h, before.c};
      saved->tensors.insert(saved->tensors.end(), kept.begin(), kept.end());
    }
    return output;
  }
  /// Returns the inputs' gradients. Appends the gates' gradients to `saved`, after the tensors that forward
  /// saved first.
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor> p, Saved& saved,
                                         std::span<const bool> needs) const override {
    const at::Tensor& mask = saved.tensors[kMask];
    at::Tensor of_gates =
        gate_gradients(grad, mask.defined() ? at::mul(p[1], mask) : p[1],
                       std::span<const at::Tensor>(saved.tensors).subspan(kGates), saved.tensors[kFirstC]);
    saved.tensors.resize(kGates);
    std::vector<at::Tensor> result{needs[0] ? input_gradient(of_gates, p[0]) : at::Tensor()};
    saved.tensors.push_back(std::move(of_gates));
    return result;
  }
  void backward_weight(const at::Tensor&, Saved& saved, std::span<at::Tensor> grads) const override {
    const auto& s = saved.tensors;
    if (!s[kMask].defined()) return add_weight_gradients(s[kGates], s[kX], s[kY], grads, s[kFirstH]);
    std::vector<at::Tensor> own(grads.begin(), grads.end());
    own[1] = at::zeros_like(grads[1]);
    add_weight_gradients(s[kGates], s[kX], s[kY], own, s[kFirstH]);
    grads[1].add_(own[1].mul_(s[kMask]));
  }

 private:
  enum Place : std::size_t { kX, kY, kMask, kFirstH, kFirstC, kGates };
  CarriedLstmOptions o_;
};

/// Returns the row order of [T * B, F] that reverses each sentence within its length. The order is its own
/// inverse.
at::Tensor reversing_rows(const at::Tensor& lengths, std::int64_t steps) {
  const std::int64_t batch = lengths.size(0);
  const at::Tensor step = at::arange(steps, lengths.options()).unsqueeze(1);  // [T, 1]
  const at::Tensor ends = lengths.unsqueeze(0);                               // [1, B]
  const at::Tensor from = at::where(step.lt(ends), ends.sub(1).sub(step), step);
  return from.mul(batch).add(at::arange(batch, lengths.options())).reshape({-1});
}

at::Tensor with_rows(const at::Tensor& x, const at::Tensor& from) {
  return rows(x).index_select(0, from).view({x.size(0), x.size(1), x.size(2)});
}

class BidirectionalLstm final : public Layer {
 public:
  BidirectionalLstm(const LstmOptions& options, std::int64_t padding) : o_(options), padding_(padding) {}
  std::string kind() const override { return "bidirectional_lstm"; }
  CastPolicy cast_policy() const override { return CastPolicy::Lower; }
  std::vector<ParameterSpec> parameters() const override {
    std::vector<ParameterSpec> specs = lstm_parameters(o_, "");
    for (ParameterSpec& spec : lstm_parameters(o_, "_reverse")) specs.push_back(std::move(spec));
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const std::string one_direction = specs[i % kWeights].name;
      specs[i].elsewhere = {"bidir." + specs[i].name, (i < kWeights ? "layer1." : "layer2.") + one_direction};
    }
    return specs;
  }
  Shape output_shape(std::span<const Shape> inputs) const override {
    check_input("bidirectional_lstm", inputs, o_.in);
    if (inputs.size() != 2 || inputs[1] != Shape{inputs[0][0], inputs[0][1]})
      throw_bad_shape("bidirectional_lstm", inputs.back(), "tokens [T, B] beside [T, B, I]");
    return {inputs[0][0], inputs[0][1], 2 * o_.hidden};
  }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> p, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    const at::Tensor& x = inputs[0];
    const at::Tensor lengths = inputs[1].ne(padding_).sum(0);  // [B]
    const at::Tensor mask =                                    // [T, B, 1]
        at::arange(x.size(0), lengths.options())
            .unsqueeze(1)
            .lt(lengths.unsqueeze(0))
            .to(x.scalar_type())
            .unsqueeze(2);
    const at::Tensor from = reversing_rows(lengths, x.size(0));
    const at::Tensor reversed = with_rows(x, from);
    std::vector<at::Tensor> kept, kept_reverse;
    const at::Tensor forward = run(x, p.first(kWeights), saved ? &kept : nullptr);
    const at::Tensor backward = run(reversed, p.subspan(kWeights), saved ? &kept_reverse : nullptr);
    if (saved) {
      saved->numbers = {static_cast<std::int64_t>(kept.size())};
      saved->tensors = {mask, from, x, reversed, forward, backward};
      for (auto* list : {&kept, &kept_reverse})
        saved->tensors.insert(saved->tensors.end(), list->begin(), list->end());
    }
    return at::mul(at::cat({forward, with_rows(backward, from)}, 2), mask);
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor> p, Saved& saved,
                                         std::span<const bool> needs) const override {
    const at::Tensor masked = at::mul(grad, saved.tensors[0]);
    const at::Tensor from = saved.tensors[1];
    const std::span<const at::Tensor> kept = std::span<const at::Tensor>(saved.tensors).subspan(6);
    const auto steps = static_cast<std::size_t>(saved.numbers[0]);
    at::Tensor gates = gate_gradients(masked.narrow(2, 0, o_.hidden), p[1], kept.first(steps));
    at::Tensor gates_reverse = gate_gradients(with_rows(masked.narrow(2, o_.hidden, o_.hidden), from),
                                              p[kWeights + 1], kept.subspan(steps));
    std::vector<at::Tensor> result(needs.size());
    if (needs[0]) {
      result[0] =
          at::add(input_gradient(gates, p[0]), with_rows(input_gradient(gates_reverse, p[kWeights]), from));
    }
    saved.tensors = {saved.tensors[2], saved.tensors[3], saved.tensors[4],
                     saved.tensors[5], std::move(gates), std::move(gates_reverse)};
    return result;
  }
  void backward_weight(const at::Tensor&, Saved& saved, std::span<at::Tensor> grads) const override {
    const auto& s = saved.tensors;
    add_weight_gradients(s[4], s[0], s[2], grads.first(kWeights));
    add_weight_gradients(s[5], s[1], s[3], grads.subspan(kWeights));
  }

 private:
  LstmOptions o_;
  std::int64_t padding_;
};

}  // namespace

LayerPtr lstm(const LstmOptions& options) {
  return std::make_shared<Lstm>(options);
}
LayerPtr carried_lstm(const CarriedLstmOptions& options) {
  return std::make_shared<CarriedLstm>(options);
}
LstmState lstm_step(const at::Tensor& x, const LstmState& before, std::span<const at::Tensor> p) {
  const std::int64_t hidden = p[1].size(1);
  at::Tensor gates = linear_forward(x, p[0], at::add(p[2], p[3]), {});  // [R, 4H]
  if (has_fused_cell(x)) {
    LstmState state = before;
    const at::Tensor from_state = gates_from_state(gates, p[1], state);
    fused_cell(gates, from_state, state);
    return state;
  }
  if (before.h.defined()) gates = plus_linear(gates, before.h, p[1]);
  const at::Tensor input_forget = at::sigmoid(part(gates, 0, 2, hidden));
  const at::Tensor input = part(input_forget, 0, 1, hidden), cell = at::tanh(part(gates, 2, 1, hidden));
  LstmState after;
  after.c = before.c.defined() ? at::addcmul(at::mul(part(input_forget, 1, 1, hidden), before.c), input, cell)
                               : at::mul(input, cell);
  after.h = at::mul(at::sigmoid(part(gates, 3, 1, hidden)), at::tanh(after.c));
  return after;
}

LayerPtr bidirectional_lstm(const LstmOptions& options, std::int64_t padding) {
  return std::make_shared<BidirectionalLstm>(options, padding);
}

}  // namespace millrace
