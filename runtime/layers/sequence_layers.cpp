#include "runtime/layers/sequence_layers.h"

#include <algorithm>
#include <cmath>

#include <ATen/ops/_unique2.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/embedding_renorm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include "runtime/layers/dropout_mask.h"
#include "runtime/layers/job_kernels.h"
#include "runtime/layers/left_out.h"
#include "runtime/layers/shape_errors.h"

namespace millrace {
namespace {

class Embedding final : public Layer {
 public:
  explicit Embedding(const EmbeddingOptions& options) : o_(options) {}
  std::string kind() const override { return "embedding"; }
  bool like(const Layer& other) const override {
    const EmbeddingOptions& o = static_cast<const Embedding&>(other).o_;
    return o_.vocabulary == o.vocabulary && o_.features == o.features && o_.padding == o.padding &&
           o_.max_norm == o.max_norm && o_.norm_type == o.norm_type;
  }
  LayerPtr over_jobs(std::int64_t) const override {
    return o_.max_norm > 0 ? nullptr : embedding_over_jobs(o_.padding);
  }
  std::vector<ParameterSpec> parameters() const override {
    return {{.name = "weight",
             .shape = {o_.vocabulary, o_.features},
             .init = o_.range > 0 ? Init::Uniform : Init::Normal,
             .a = o_.range > 0 ? o_.range : o_.deviation,
             .kind = ParameterKind::Embedding,
             .zero_row = o_.zero_padding ? o_.padding : -1,
             .written = o_.max_norm > 0}};
  }
  Shape output_shape(std::span<const Shape> inputs) const override {
    Shape shape = inputs[0];
    shape.push_back(o_.features);
    return shape;
  }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> p, std::span<at::Tensor>,
                     const CallContext& context, Saved* saved) const override {
    if (saved) saved->tensors = {inputs[0]};
    if (o_.max_norm <= 0) return at::embedding(p[0], inputs[0], o_.padding);
    const auto [tokens, places, counts] = at::_unique2(inputs[0], /*sorted=*/true, /*return_inverse=*/true);
    const at::Tensor rows = scaled_rows(p[0].detach(), tokens);
    if (!context.training) return at::embedding(rows, places);
    p[0].detach().index_copy_(0, tokens, rows);
    return at::embedding(p[0], inputs[0], o_.padding);
  }
  std::vector<at::Tensor> backward_input(const at::Tensor&, std::span<const at::Tensor>, Saved&,
                                         std::span<const bool>) const override {
    return {at::Tensor()};
  }
  at::Tensor rows_of_gradient(const Saved& saved) const override {
    return is_sparse(saved.tensors[0]) ? saved.tensors[0].reshape({-1}) : at::Tensor();
  }
  void backward_weight(const at::Tensor& grad, Saved& saved, std::span<at::Tensor> grads) const override {
    const at::Tensor rows = saved.tensors[0].reshape({-1});
    if (!is_sparse(rows)) {
      grads[0].add_(at::embedding_dense_backward(grad, saved.tensors[0], o_.vocabulary, o_.padding,
                                                 /*scale_grad_by_freq=*/false));
      return;
    }
    // The bits are the same without a table of the whole vocabulary: a token's rows are summed first, in
    // order.
    const auto [tokens, places, counts] = at::_unique2(rows, /*sorted=*/true, /*return_inverse=*/true);
    at::Tensor sums = at::zeros({tokens.size(0), o_.features}, grad.options());
    sums.index_add_(0, places, grad.reshape({-1, o_.features}));
    if (o_.padding >= 0) sums.masked_fill_(tokens.eq(o_.padding).unsqueeze(1), 0);
    grads[0].index_add_(0, tokens, sums.to(grads[0].scalar_type()));
  }

 private:
  /// Returns the rows `tokens` of `weight`, none longer than max_norm. After scaling, a row may still be
  /// longer by a rounding error. It is then scaled again, so that the next reader does not change it.
  at::Tensor scaled_rows(const at::Tensor& weight, const at::Tensor& tokens) const {
    at::Tensor rows = weight.index_select(0, tokens);
    const at::Tensor all = at::arange(tokens.numel(), tokens.options());
    for (at::Tensor longer = all; longer.numel() > 0;) {
      at::embedding_renorm_(rows, longer, o_.max_norm, o_.norm_type);
      longer = at::norm(rows, o_.norm_type, {1}, /*keepdim=*/false).gt(o_.max_norm).nonzero().flatten();
    }
    return rows;
  }

  bool is_sparse(const at::Tensor& tokens) const {
    return tokens.device().is_cpu() && kSparse * tokens.numel() <= o_.vocabulary;
  }

  /// the sparse path is used if the vocabulary has at least this many tokens per token in the microbatch
  static constexpr std::int64_t kSparse = 2;
  EmbeddingOptions o_;
};

class LayerNorm final : public Layer {
 public:
  LayerNorm(std::int64_t features, double epsilon) : features_(features), epsilon_(epsilon) {}
  std::string kind() const override { return "layer_norm"; }
  CastPolicy cast_policy() const override { return CastPolicy::Promote; }
  bool like(const Layer& other) const override {
    const auto& o = static_cast<const LayerNorm&>(other);
    return features_ == o.features_ && epsilon_ == o.epsilon_;
  }
  LayerPtr over_jobs(std::int64_t) const override { return layer_norm_over_jobs(features_, epsilon_); }
  std::vector<ParameterSpec> parameters() const override {
    return {{.name = "weight", .shape = {features_}, .init = Init::Ones, .kind = ParameterKind::Norm},
            {.name = "bias", .shape = {features_}, .kind = ParameterKind::Norm}};
  }
  Shape output_shape(std::span<const Shape> inputs) const override {
    if (inputs[0].empty() || inputs[0].back() != features_)
      throw_bad_shape("layer_norm", inputs[0], "[..., " + std::to_string(features_) + "]");
    return inputs[0];
  }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> p, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    const at::Tensor x = as_kernel_takes(inputs[0]);
    auto [output, mean, inverse] = at::native_layer_norm(x, {features_}, p[0], p[1], epsilon_);
    if (saved) saved->tensors = {x, std::move(mean), std::move(inverse)};
    return output.to(inputs[0].scalar_type());
  }
  /// Returns the input's gradient. One kernel computes all three gradients; those of the parameters are kept
  /// in `saved`.
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor> p, Saved& saved,
                                         std::span<const bool> needs) const override {
    auto [input, weight, bias] =
        at::native_layer_norm_backward(as_kernel_takes(grad), saved.tensors[0], {features_}, saved.tensors[1],
                                       saved.tensors[2], p[0], p[1], {needs[0], true, true});
    saved.tensors = {std::move(weight), std::move(bias)};
    return {input.defined() ? input.to(grad.scalar_type()) : input};
  }
  void backward_weight(const at::Tensor&, Saved& saved, std::span<at::Tensor> grads) const override {
    grads[0].add_(saved.tensors[0]);
    grads[1].add_(saved.tensors[1]);
  }

 private:
  /// Returns x in a type that the kernel accepts. Only the CPU's kernel accepts a lower precision together
  /// with float32 weights.
  static at::Tensor as_kernel_takes(const at::Tensor& x) { return x.device().is_cpu() ? x : widened(x); }

  std::int64_t features_;
  double epsilon_;
};

void check_sequence(const std::string& layer, const Shape& x, std::int64_t features) {
  if (x.size() != 3 || x[2] != features)
    throw_bad_shape(layer, x, "[B, T, " + std::to_string(features) + "]");
}

class LearnedPositions final : public Layer {
 public:
  LearnedPositions(std::int64_t positions, std::int64_t features, double deviation)
      : positions_(positions), features_(features), deviation_(deviation) {}
  std::string kind() const override { return "learned_positions"; }
  bool like(const Layer&) const override { return true; }
  LayerPtr over_jobs(std::int64_t) const override { return learned_positions_over_jobs(); }
  std::vector<ParameterSpec> parameters() const override {
    return {{.name = "weight",
             .shape = {positions_, features_},
             .init = Init::Normal,
             .a = deviation_,
             .kind = ParameterKind::Embedding}};
  }
  Shape output_shape(std::span<const Shape> inputs) const override {
    check_sequence(kind(), inputs[0], features_);
    if (inputs[0][1] > positions_)
      throw_bad_shape(kind(), inputs[0], "at most " + std::to_string(positions_) + " positions");
    return inputs[0];
  }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> p, std::span<at::Tensor>,
                     const CallContext&, Saved*) const override {
    return at::add(inputs[0], p[0].narrow(0, 0, inputs[0].size(1)));
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved&,
                                         std::span<const bool>) const override {
    return {grad};
  }
  void backward_weight(const at::Tensor& grad, Saved&, std::span<at::Tensor> grads) const override {
    grads[0].narrow(0, 0, grad.size(1)).add_(at::sum(grad, 0));
  }

 private:
  std::int64_t positions_, features_;
  double deviation_;
};

class SinusoidalPositions final : public Layer {
 public:
  SinusoidalPositions(std::int64_t features, double scale) : features_(features), scale_(scale) {}
  std::string kind() const override { return "sinusoidal_positions"; }
  bool like(const Layer& other) const override {
    const auto& o = static_cast<const SinusoidalPositions&>(other);
    return features_ == o.features_ && scale_ == o.scale_;
  }
  bool folds() const override { return true; }
  Shape output_shape(std::span<const Shape> inputs) const override {
    check_sequence(kind(), inputs[0], features_);
    return inputs[0];
  }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext&, Saved*) const override {
    return at::add(table(inputs[0]), inputs[0], scale_);
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved&,
                                         std::span<const bool>) const override {
    return {at::mul(grad, scale_)};
  }

 private:
  /// Returns [T, F]: sines at even features, cosines at odd ones.
  at::Tensor table(const at::Tensor& like) const {
    const auto options = like.options();
    const at::Tensor rate =  // [F / 2]
        at::arange(0, features_, 2, options).mul(-std::log(10000.0) / double(features_)).exp();
    const at::Tensor angle = at::arange(like.size(1), options).unsqueeze(1).mul(rate);
    return at::stack({at::sin(angle), at::cos(angle)}, 2).view({like.size(1), features_});
  }
  std::int64_t features_;
  double scale_;
};

/// Multiplies x by a mask with as many dimensions; a dimension of size 1 shares the mask.
class MaskedDropout : public Layer, public MayBeLeftOut {
 public:
  explicit MaskedDropout(double p) : p_(p) {}
  CastPolicy cast_policy() const override { return CastPolicy::Promote; }
  bool draws() const override { return p_ > 0; }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext& context, Saved* saved) const override {
    if (saved) saved->tensors.clear();
    if (!context.training || p_ == 0) return inputs[0];
    const at::Tensor mask = this->mask(inputs, context);
    if (saved) saved->tensors = {mask};
    return at::mul(inputs[0], mask);
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved& saved,
                                         std::span<const bool> needs) const override {
    std::vector<at::Tensor> all(needs.size());
    all[0] = saved.tensors.empty() ? grad : at::mul(grad, saved.tensors[0]);
    return all;
  }

 protected:
  virtual at::Tensor mask(std::span<const at::Tensor> inputs, const CallContext& context) const = 0;
  double p_;
};

class LockedDropout final : public MaskedDropout {
 public:
  using MaskedDropout::MaskedDropout;
  std::string kind() const override { return "locked_dropout"; }
  LayerPtr left_out() const override { return locked_dropout(0); }
  Shape output_shape(std::span<const Shape> inputs) const override {
    if (inputs[0].size() != 3) throw_bad_shape(kind(), inputs[0], "[T, B, F]");
    return inputs[0];
  }

 private:
  at::Tensor mask(std::span<const at::Tensor> inputs, const CallContext& context) const override {
    return dropout_mask(inputs[0].narrow(0, 0, 1), p_, context.random_seed, context.masks);
  }
};

class RowDropout final : public MaskedDropout {
 public:
  RowDropout(std::int64_t vocabulary, double p) : MaskedDropout(p), vocabulary_(vocabulary) {}
  std::string kind() const override { return "row_dropout"; }
  LayerPtr left_out() const override { return row_dropout(vocabulary_, 0); }
  Shape output_shape(std::span<const Shape> inputs) const override {
    Shape tokens = inputs[0];
    if (!tokens.empty()) tokens.pop_back();
    if (inputs.size() != 2 || inputs[1] != tokens)
      throw_bad_shape(kind(), inputs.back(), "tokens [...] beside [..., F]");
    return inputs[0];
  }

 private:
  at::Tensor mask(std::span<const at::Tensor> inputs, const CallContext& context) const override {
    const at::Tensor rows = at::empty({vocabulary_}, inputs[0].options());
    return dropout_mask(rows, p_, context.random_seed, context.masks)
        .index_select(0, inputs[1].reshape({-1}))
        .view(inputs[1].sizes())
        .unsqueeze(-1);
  }
  std::int64_t vocabulary_;
};

class ConcatFeatures final : public Layer {
 public:
  std::string kind() const override { return "concat_features"; }
  CastPolicy cast_policy() const override { return CastPolicy::Promote; }
  bool like(const Layer&) const override { return true; }
  bool folds() const override { return true; }
  Shape output_shape(std::span<const Shape> inputs) const override {
    Shape result = inputs[0];
    for (const Shape& x : inputs.subspan(1)) {
      if (x.size() != result.size() || !std::equal(x.begin(), x.end() - 1, result.begin()))
        throw_bad_shape(kind(), x, "all but the last dimension of the first input");
      result.back() += x.back();
    }
    return result;
  }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    if (saved) {
      saved->numbers.clear();
      for (const at::Tensor& x : inputs) saved->numbers.push_back(x.size(-1));
    }
    return at::cat(std::vector(inputs.begin(), inputs.end()), -1);
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved& saved,
                                         std::span<const bool> needs) const override {
    std::vector<at::Tensor> result;
    std::int64_t first = 0;
    for (std::size_t i = 0; i < needs.size(); ++i) {
      const std::int64_t width = saved.numbers[i];
      result.push_back(needs[i] ? grad.narrow(-1, first, width).contiguous() : at::Tensor());
      first += width;
    }
    return result;
  }
};

class TokenFlag final : public Layer {
 public:
  explicit TokenFlag(std::int64_t padding) : padding_(padding) {}
  std::string kind() const override { return "token_flag"; }
  CastPolicy cast_policy() const override { return CastPolicy::Promote; }
  bool like(const Layer& other) const override {
    return padding_ == static_cast<const TokenFlag&>(other).padding_;
  }
  bool folds() const override { return true; }
  Shape output_shape(std::span<const Shape> inputs) const override {
    Shape result = inputs[0];
    if (result.empty() || inputs.size() != 2 || inputs[1] != Shape(result.begin(), result.end() - 1))
      throw_bad_shape(kind(), inputs.back(), "tokens [...] beside [..., F]");
    ++result.back();
    return result;
  }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext&, Saved*) const override {
    const at::Tensor& x = inputs[0];
    return at::cat({x, inputs[1].ne(padding_).to(x.scalar_type()).unsqueeze(-1)}, -1);
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved&,
                                         std::span<const bool> needs) const override {
    std::vector<at::Tensor> all(needs.size());
    if (needs[0]) all[0] = grad.narrow(-1, 0, grad.size(-1) - 1).contiguous();
    return all;
  }

 private:
  std::int64_t padding_;
};

class FirstToken final : public Layer {
 public:
  std::string kind() const override { return "first_token"; }
  CastPolicy cast_policy() const override { return CastPolicy::Promote; }
  bool like(const Layer&) const override { return true; }
  bool folds() const override { return true; }
  Shape output_shape(std::span<const Shape> inputs) const override {
    if (inputs[0].size() != 3) throw_bad_shape(kind(), inputs[0], "[B, T, F]");
    return {inputs[0][0], inputs[0][2]};
  }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    if (saved) saved->numbers = inputs[0].sizes().vec();
    return inputs[0].select(1, 0).contiguous();
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved& saved,
                                         std::span<const bool>) const override {
    at::Tensor result = at::zeros(saved.numbers, grad.options());
    result.select(1, 0).copy_(grad);
    return {result};
  }
};

class GatherPositions final : public Layer {
 public:
  std::string kind() const override { return "gather_positions"; }
  CastPolicy cast_policy() const override { return CastPolicy::Promote; }
  bool like(const Layer&) const override { return true; }
  bool folds() const override { return true; }
  Shape output_shape(std::span<const Shape> inputs) const override {
    if (inputs[0].size() != 3) throw_bad_shape(kind(), inputs[0], "[B, T, F]");
    if (inputs.size() != 2 || inputs[1].size() != 2 || inputs[1][0] != inputs[0][0])
      throw_bad_shape(kind(), inputs.back(), "positions [B, P] beside [B, T, F]");
    return {inputs[0][0], inputs[1][1], inputs[0][2]};
  }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    const at::Tensor& x = inputs[0];
    at::Tensor places = at::add(inputs[1], at::arange(x.size(0), inputs[1].options()).unsqueeze(1), x.size(1))
                            .reshape({-1});  // [B * P], rows of [B * T, F]
    at::Tensor output =
        x.reshape({-1, x.size(2)}).index_select(0, places).view({x.size(0), inputs[1].size(1), x.size(2)});
    if (saved) {
      saved->numbers = x.sizes().vec();
      saved->tensors = {std::move(places)};
    }
    return output;
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved& saved,
                                         std::span<const bool> needs) const override {
    const std::int64_t features = saved.numbers[2];
    at::Tensor result = at::zeros({saved.numbers[0] * saved.numbers[1], features}, grad.options());
    result.index_add_(0, saved.tensors[0], grad.reshape({-1, features}));
    std::vector<at::Tensor> all(needs.size());
    all[0] = result.view(saved.numbers);
    return all;
  }
};

}  // namespace

LayerPtr embedding(const EmbeddingOptions& options) {
  return std::make_shared<Embedding>(options);
}
LayerPtr layer_norm(std::int64_t features, double epsilon) {
  return std::make_shared<LayerNorm>(features, epsilon);
}
LayerPtr learned_positions(std::int64_t positions, std::int64_t features, double deviation) {
  return std::make_shared<LearnedPositions>(positions, features, deviation);
}
LayerPtr sinusoidal_positions(std::int64_t features, double scale) {
  return std::make_shared<SinusoidalPositions>(features, scale);
}
LayerPtr locked_dropout(double p) {
  return std::make_shared<LockedDropout>(p);
}
LayerPtr row_dropout(std::int64_t vocabulary, double p) {
  return std::make_shared<RowDropout>(vocabulary, p);
}
LayerPtr concat_features() {
  return std::make_shared<ConcatFeatures>();
}
LayerPtr token_flag(std::int64_t padding) {
  return std::make_shared<TokenFlag>(padding);
}
LayerPtr first_token() {
  return std::make_shared<FirstToken>();
}
LayerPtr gather_positions() {
  return std::make_shared<GatherPositions>();
}

}  // namespace millrace
