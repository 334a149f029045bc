#include "runtime/layers/attention_layers.h"

#include <algorithm>
#include <cmath>

#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/add.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/div.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/zeros.h>

#include "runtime/kernels/linear_kernels.h"
#include "runtime/layers/dropout_mask.h"
#include "runtime/layers/shape_errors.h"

namespace millrace {
namespace {

at::Tensor rows_of(const at::Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}

/// [..., F] x weight [G, F] -> [..., G].
at::Tensor project(const at::Tensor& x, const at::Tensor& weight) {
  Shape shape = x.sizes().vec();
  shape.back() = weight.size(0);
  return at::mm(rows_of(x), weight.t()).view(shape);
}

/// The score of padding, as in GNMT's code. Its exp is 0, and a sentence without tokens still gives finite
/// values.
constexpr double kNever = -65504;

class BahdanauAttention final : public Layer {
 public:
  explicit BahdanauAttention(const BahdanauOptions& options) : o_(options) {}
  std::string kind() const override { return "bahdanau_attention"; }
  CastPolicy cast_policy() const override { return CastPolicy::Lower; }

  std::vector<ParameterSpec> parameters() const override {
    const std::int64_t h = o_.features;
    const double bound = 1 / std::sqrt(double(h)), a = o_.range > 0 ? o_.range : bound;
    return {{.name = "linear_q.weight", .shape = {h, h}, .init = Init::Uniform, .a = a},
            {.name = "linear_k.weight", .shape = {h, h}, .init = Init::Uniform, .a = a},
            {.name = "linear_att", .shape = {h}, .init = Init::Uniform, .a = a},
            {.name = "normalize_scalar",
             .shape = {1},
             .init = Init::Constant,
             .a = bound,
             .kind = ParameterKind::Norm},
            {.name = "normalize_bias", .shape = {h}, .kind = ParameterKind::Bias}};
  }

  Shape output_shape(std::span<const Shape> inputs) const override {
    const std::int64_t h = o_.features;
    const std::string name = kind(), features = std::to_string(h);
    for (const Shape& x : inputs.first(std::min<std::size_t>(2, inputs.size()))) {
      if (x.size() != 3 || x[2] != h) throw_bad_shape(name, x, "[T, B, " + features + "]");
    }
    if (inputs.size() != 3 || inputs[0][1] != inputs[1][1] || inputs[2] != Shape{inputs[1][0], inputs[1][1]})
      throw_bad_shape(name, inputs.back(), "queries [T, B, H], keys [S, B, H] and tokens [S, B]");
    return inputs[0];
  }

  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> p, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    const at::Tensor &y = inputs[0], &e = inputs[1];
    const at::Tensor padded = inputs[2].eq(o_.padding);  // [S, B]
    const at::Tensor q = project(y, p[0]);               // [T, B, H]
    const at::Tensor k = at::add(project(e, p[1]), p[4]);
    const at::Tensor direction = at::mul(p[2], at::div(p[3], p[2].norm()));  // [H]
    std::vector<at::Tensor> parts;
    for_each_tile(q, k, [&](std::int64_t first, std::int64_t count) {
      const at::Tensor z = tanh_of(q, k, first, count);
      parts.push_back(at::mv(rows_of(z), direction).view({count, e.size(0), e.size(1)}));
    });
    const at::Tensor scores = at::cat(parts).masked_fill(padded, kNever);  // [T, S, B]
    at::Tensor probabilities = at::_softmax(widened(scores), 1, false);
    at::Tensor context =  // [B, T, H]
        at::bmm(probabilities.to(e.scalar_type()).permute({2, 0, 1}), e.transpose(0, 1));
    if (saved) saved->tensors = {y, e, padded, q, k, direction, std::move(probabilities), p[2], p[3]};
    return context.transpose(0, 1).contiguous();
  }

  /// Returns the gradients of the inputs. Saves queries, keys and the gradients of q, k and the direction for
  /// backward_weight, with v and g.
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor> p, Saved& saved,
                                         std::span<const bool> needs) const override {
    const auto& s = saved.tensors;
    const at::Tensor &e = s[1], &q = s[3], &k = s[4], &direction = s[5], &probabilities = s[6];
    const at::Tensor of_context = grad.transpose(0, 1);  // [B, T, H]
    const at::Tensor of_probabilities =                  // [T, S, B]
        at::bmm(of_context, e.permute({1, 2, 0})).permute({1, 2, 0}).contiguous();
    const auto wide = probabilities.scalar_type(), narrow = e.scalar_type();
    const at::Tensor of_scores = at::_softmax_backward_data(of_probabilities.to(wide), probabilities, 1, wide)
                                     .to(narrow)
                                     .masked_fill(s[2], 0);
    std::vector<at::Tensor> parts;
    // Sums over the tiles are at least float32.
    at::Tensor of_k = at::zeros(k.sizes(), k.options().dtype(wide));
    at::Tensor of_direction = at::zeros(direction.sizes(), direction.options().dtype(wide));
    for_each_tile(q, k, [&](std::int64_t first, std::int64_t count) {
      at::Tensor z = tanh_of(q, k, first, count);                 // [t, S, B, H]
      const at::Tensor here = of_scores.narrow(0, first, count);  // [t, S, B]
      if (wide == narrow)
        of_direction.addmv_(rows_of(z).t(), here.reshape({-1}));
      else
        of_direction.add_(at::mv(rows_of(z).t(), here.reshape({-1})));
      at::tanh_backward_out(z, here.unsqueeze(3).expand(z.sizes()), z);
      parts.push_back(at::mul(at::sum(z, 1), direction));
      of_k.add_(at::sum(z, 0));
    });
    of_k = of_k.mul_(direction).to(narrow);
    of_direction = of_direction.to(narrow);
    const at::Tensor of_q = at::cat(parts);  // [T, B, H]
    std::vector<at::Tensor> result(needs.size());
    if (needs[0]) result[0] = project(of_q, p[0].t());
    if (needs[1]) {
      const at::Tensor through_context =  // [B, S, H]
          at::bmm(probabilities.to(narrow).permute({2, 1, 0}), of_context);
      result[1] = at::add(project(of_k, p[1].t()), through_context.transpose(0, 1));
    }
    saved.tensors = {s[0], s[1], of_q, of_k, std::move(of_direction), s[7], s[8]};
    return result;
  }

  void backward_weight(const at::Tensor&, Saved& saved, std::span<at::Tensor> grads) const override {
    const auto& s = saved.tensors;
    const at::Tensor &of_q = s[2], &of_k = s[3], &of_direction = s[4], &v = s[5], &g = s[6];
    add_weight_gradient_(rows_of(s[0]), rows_of(of_q), grads[0]);
    add_weight_gradient_(rows_of(s[1]), rows_of(of_k), grads[1]);
    // direction = g v / |v|
    const at::Tensor norm = v.norm(), unit = at::div(v, norm), along = at::dot(of_direction, unit);
    grads[2].add_(at::mul(at::sub(of_direction, at::mul(unit, along)), at::div(g, norm)));
    grads[3].add_(along);
    grads[4].add_(at::sum(rows_of(of_k), 0));
  }

 private:
  /// Elements of one tile of the tanh tensor: 1 MiB in float32, which fits in a core's L2 cache.
  static constexpr std::int64_t kTile = 1 << 18;

  template <class Do>
  static void for_each_tile(const at::Tensor& q, const at::Tensor& k, Do&& what) {
    const std::int64_t steps = std::max<std::int64_t>(1, kTile / std::max<std::int64_t>(1, k.numel()));
    for (std::int64_t t = 0; t < q.size(0); t += steps) what(t, std::min(steps, q.size(0) - t));
  }
  /// [count, S, B, H]
  static at::Tensor tanh_of(const at::Tensor& q, const at::Tensor& k, std::int64_t first,
                            std::int64_t count) {
    return at::add(q.narrow(0, first, count).unsqueeze(1), k.unsqueeze(0)).tanh_();
  }

  BahdanauOptions o_;
};

class SelfAttention final : public Layer {
 public:
  explicit SelfAttention(const AttentionOptions& options) : o_(options) {}
  std::string kind() const override { return "self_attention"; }
  CastPolicy cast_policy() const override { return CastPolicy::Lower; }
  bool like(const Layer& other) const override {
    const AttentionOptions& o = static_cast<const SelfAttention&>(other).o_;
    return o_.heads == o.heads && o_.dropout == o.dropout && o_.masked == o.masked &&
           o_.padding == o.padding && o_.causal == o.causal && o_.packed == o.packed;
  }
  bool folds() const override { return true; }
  bool draws() const override { return o_.dropout > 0; }

  Shape output_shape(std::span<const Shape> inputs) const override {
    const std::size_t values = o_.packed ? 1 : 3;
    Shape shape = inputs[0];
    if (inputs.size() != values + (o_.masked ? 1 : 0))
      throw ConfigError("self_attention got " + std::to_string(inputs.size()) + " inputs, expected " +
                        std::to_string(values + (o_.masked ? 1 : 0)));
    const std::int64_t parts = o_.heads * (o_.packed ? 3 : 1);
    for (const Shape& x : inputs.first(values)) {
      if (x.size() != 3 || x[2] % parts != 0 || x != shape)
        throw_bad_shape("self_attention", x, "[B, T, a multiple of " + std::to_string(parts) + "]");
    }
    if (o_.masked && inputs.back() != Shape{shape[0], shape[1]})
      throw_bad_shape("self_attention", inputs.back(), "tokens [B, T]");
    if (o_.packed) shape[2] /= 3;
    return shape;
  }

  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext& context, Saved* saved) const override {
    const std::vector<at::Tensor> qkv =
        o_.packed ? inputs[0].chunk(3, 2) : std::vector(inputs.begin(), inputs.begin() + 3);
    const std::int64_t batch = qkv[0].size(0), steps = qkv[0].size(1), features = qkv[0].size(2) / o_.heads;
    const double scale = 1 / std::sqrt(double(features));
    at::Tensor q = split(qkv[0]), k = split(qkv[1]), v = split(qkv[2]);  // [B * heads, T, D]
    at::Tensor scores = at::bmm(q, k.transpose(1, 2)).mul_(scale);       // [B * heads, T, T]
    if (o_.masked) {
      const at::Tensor padded = inputs.back().eq(o_.padding).view({batch, 1, 1, steps});
      scores = scores.view({batch, o_.heads, steps, steps}).masked_fill(padded, kNever).view(scores.sizes());
    }
    if (o_.causal == Causal::Yes) {
      const at::Tensor later = at::ones({steps, steps}, scores.options().dtype(at::kBool)).triu(1);
      scores = scores.masked_fill(later, -HUGE_VAL);
    }
    at::Tensor probabilities = at::_softmax(widened(scores), 2, false), mask;
    at::Tensor used = probabilities.to(v.scalar_type());
    if (context.training && o_.dropout > 0) {
      mask = dropout_mask(used, o_.dropout, context);
      used = at::mul(used, mask);
    }
    const at::Tensor output = at::bmm(used, v);  // [B * heads, T, D]
    if (saved) saved->tensors = {std::move(q), std::move(k), std::move(v), std::move(probabilities), mask};
    return joined(output, batch);
  }

  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved& saved,
                                         std::span<const bool> needs) const override {
    const auto& s = saved.tensors;
    const at::Tensor &q = s[0], &k = s[1], &v = s[2], &probabilities = s[3], &mask = s[4];
    const std::int64_t batch = grad.size(0);
    const at::Tensor of_output = split(grad);  // [B * heads, T, D]
    const auto wide = probabilities.scalar_type(), narrow = v.scalar_type();
    at::Tensor used = probabilities.to(narrow);
    if (mask.defined()) used = at::mul(used, mask);
    at::Tensor of_used = at::bmm(of_output, v.transpose(1, 2));
    if (mask.defined()) of_used.mul_(mask);
    // A masked position has probability 0, so its score's gradient is 0 too.
    const at::Tensor of_scores = at::_softmax_backward_data(of_used.to(wide), probabilities, 2, wide)
                                     .mul_(1 / std::sqrt(double(q.size(2))))
                                     .to(narrow);
    const at::Tensor of_q = joined(at::bmm(of_scores, k), batch),
                     of_k = joined(at::bmm(of_scores.transpose(1, 2), q), batch),
                     of_v = joined(at::bmm(used.transpose(1, 2), of_output), batch);
    std::vector<at::Tensor> result(needs.size());
    if (o_.packed) {
      result[0] = at::cat({of_q, of_k, of_v}, 2);
    } else {
      result[0] = of_q;
      result[1] = of_k;
      result[2] = of_v;
    }
    return result;
  }

 private:
  /// split(): [B, T, heads * D] -> [B * heads, T, D], contiguous; joined() is the inverse.
  at::Tensor split(const at::Tensor& x) const {
    const std::int64_t batch = x.size(0), steps = x.size(1), features = x.size(2) / o_.heads;
    return x.reshape({batch, steps, o_.heads, features})
        .transpose(1, 2)
        .reshape({batch * o_.heads, steps, features});
  }
  at::Tensor joined(const at::Tensor& x, std::int64_t batch) const {
    return x.view({batch, o_.heads, x.size(1), x.size(2)})
        .transpose(1, 2)
        .reshape({batch, x.size(1), o_.heads * x.size(2)});
  }

  AttentionOptions o_;
};

}  // namespace

BahdanauMemory::BahdanauMemory(const at::Tensor& encoded, const at::Tensor& source,
                               std::span<const at::Tensor> p, std::int64_t padding)
    : encoded_(encoded.transpose(0, 1).contiguous()),
      keys_(at::add(project(encoded_, p[1]), p[4])),
      padded_(source.eq(padding).t().contiguous()),
      query_weight_(p[0]),
      direction_(at::mul(p[2], at::div(p[3], p[2].norm()))) {}

BahdanauMemory::Look BahdanauMemory::look(const at::Tensor& queries,
                                          const at::Tensor& sentence_of_row) const {
  // A few rows are computed at a time, so that the tanh tensor [r, S, H] fits in a core's cache.
  constexpr std::int64_t kTile = 1 << 18;
  const at::Tensor projected = project(queries, query_weight_);  // [R, H]
  const std::int64_t rows = queries.size(0), positions = keys_.size(1);
  const std::int64_t tile =
      std::max<std::int64_t>(1, kTile / std::max<std::int64_t>(1, positions * keys_.size(2)));
  std::vector<at::Tensor> scores, contexts;
  for (std::int64_t first = 0; first < rows; first += tile) {
    const std::int64_t count = std::min(tile, rows - first);
    const at::Tensor of = sentence_of_row.narrow(0, first, count);
    at::Tensor z = keys_.index_select(0, of);  // [r, S, H]
    z.add_(projected.narrow(0, first, count).unsqueeze(1)).tanh_();
    const at::Tensor score = at::mv(rows_of(z), direction_)
                                 .view({count, positions})
                                 .masked_fill(padded_.index_select(0, of), kNever);
    scores.push_back(at::_softmax(score, 1, false));
    contexts.push_back(at::bmm(scores.back().unsqueeze(1), encoded_.index_select(0, of)).squeeze(1));
  }
  return {at::cat(scores), at::cat(contexts)};
}

LayerPtr bahdanau_attention(const BahdanauOptions& options) {
  return std::make_shared<BahdanauAttention>(options);
}
LayerPtr self_attention(const AttentionOptions& options) {
  return std::make_shared<SelfAttention>(options);
}

}  // namespace millrace
