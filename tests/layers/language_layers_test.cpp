// The layers of language models against figures worked out elsewhere, and against LibTorch's own.
#include <gtest/gtest.h>

#include <cmath>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_pack_padded_sequence.h>
#include <ATen/ops/_pad_packed_sequence.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_renorm.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/lstm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include "runtime/layers/attention_layers.h"
#include "runtime/layers/basic_layers.h"
#include "runtime/layers/carrying_layer.h"
#include "runtime/layers/dropout_mask.h"
#include "runtime/layers/initialise.h"
#include "runtime/layers/recurrent_layers.h"
#include "runtime/layers/sequence_layers.h"

namespace millrace {
namespace {

at::Tensor doubles(std::initializer_list<double> values, at::IntArrayRef shape) {
  return at::tensor(std::vector<double>(values), at::kDouble).view(shape);
}

at::Tensor integers(std::initializer_list<std::int64_t> values, at::IntArrayRef shape) {
  return at::tensor(std::vector<std::int64_t>(values), at::kLong).view(shape);
}

at::Tensor output_of(const LayerPtr& layer, std::vector<at::Tensor> inputs,
                     std::vector<at::Tensor> parameters) {
  at::NoGradGuard no_grad;
  return layer->forward(inputs, parameters, {}, {.training = false}, nullptr);
}

std::vector<at::Tensor> initial(const LayerPtr& layer, at::ScalarType dtype = at::kFloat) {
  std::vector<at::Tensor> values;
  for (at::Tensor& value : initialise(layer->parameters(), 3, "x")) values.push_back(value.to(dtype));
  return values;
}

TEST(BahdanauAttention, HasTheWorkedExamplesContext) {
  const LayerPtr layer = bahdanau_attention({.features = 2});
  const std::vector<at::Tensor> parameters{doubles({.1, .2, .3, -.4}, {2, 2}),
                                           doubles({.5, -.1, .2, .3}, {2, 2}), doubles({.6, -.8}, {2}),
                                           doubles({std::sqrt(.5)}, {1}), doubles({.05, -.05}, {2})};
  const at::Tensor y = doubles({.5, -1}, {1, 1, 2}), e = doubles({1, 0, .5, .5, -1, 2}, {3, 1, 2});
  EXPECT_TRUE(at::allclose(output_of(layer, {y, e, integers({5, 6, 7}, {3, 1})}, parameters).view({2}),
                           doubles({.336734296, .663265704}, {2}), 0, 1e-9));
  // Two tokens.
  EXPECT_TRUE(at::allclose(output_of(layer, {y, e, integers({5, 6, 0}, {3, 1})}, parameters).view({2}),
                           doubles({.767014358, .232985642}, {2}), 0, 1e-9));
}

/// Windows of a sequence, each from the state that the one before left, are the sequence; its gradients are
/// those of LibTorch's LSTM from that state.
TEST(CarriedLstm, GoesOnWhereItEnded) {
  const auto layer = std::static_pointer_cast<const CarryingLayer>(
      carried_lstm({.sizes = {.in = 3, .hidden = 4}, .weight_drop = 0.5}));
  const std::vector<at::Tensor> p = initial(layer, at::kDouble);
  const at::Tensor x = at::randn({9, 2, 3}, at::kDouble);
  const at::Tensor whole = output_of(lstm({.in = 3, .hidden = 4}), {x}, p);
  std::vector<at::Tensor> state(2);
  for (const auto& [first, length] : {std::pair{0, 4}, {4, 1}, {5, 4}}) {
    const std::vector<at::Tensor> window{x.narrow(0, first, length)};
    at::NoGradGuard no_grad;
    const at::Tensor output = layer->forward_from(window, p, state, {.training = false}, nullptr);
    EXPECT_TRUE(at::allclose(output, whole.narrow(0, first, length), 0, 1e-12)) << first;
    EXPECT_TRUE(at::equal(state[0], output[length - 1]));
  }

  const std::vector<at::Tensor> before{at::randn({2, 4}, at::kDouble), at::randn({2, 4}, at::kDouble)};
  constexpr std::uint64_t kSeed = 5;
  const at::Tensor mask = dropout_mask(p[1], 0.5, kSeed), grad = at::randn({9, 2, 4}, at::kDouble);
  std::vector<at::Tensor> leaves{x.clone().requires_grad_()};
  for (const at::Tensor& one : p) leaves.push_back(one.clone().requires_grad_());
  const std::vector<at::Tensor> first{before[0].unsqueeze(0), before[1].unsqueeze(0)};
  const std::vector<at::Tensor> weights{leaves[1], leaves[2].mul(mask), leaves[3], leaves[4]};
  const auto [output, h, c] = at::lstm(leaves[0], first, weights, true, 1, 0.0, true, false, false);
  const auto expected = torch::autograd::grad({output}, leaves, {grad});
  at::NoGradGuard no_grad;
  Saved saved;
  state = before;
  const at::Tensor ours =
      layer->forward_from(std::vector{x}, p, state, {.training = true, .random_seed = kSeed}, &saved);
  EXPECT_TRUE(at::allclose(ours, output, 0, 1e-12));
  EXPECT_TRUE(at::allclose(state[0], h[0], 0, 1e-12));
  EXPECT_TRUE(at::allclose(state[1], c[0], 0, 1e-12));
  std::vector<at::Tensor> grads;
  for (const at::Tensor& one : p) grads.push_back(at::zeros_like(one));
  const bool needs[] = {true};
  const at::Tensor of_x = layer->backward_input(grad, p, saved, needs)[0];
  layer->backward_weight(grad, saved, grads);
  EXPECT_TRUE(at::allclose(of_x, expected[0], 0, 1e-12));
  for (std::size_t i = 0; i < grads.size(); ++i)
    EXPECT_TRUE(at::allclose(grads[i], expected[i + 1], 0, 1e-12)) << i;
}

/// A mask for all steps; rows of the embedding that a token is, or is not, everywhere.
TEST(Dropout, IsTheSameAtEveryStepAndForEveryTokenOfAKind) {
  at::NoGradGuard no_grad;
  const CallContext training{.training = true, .random_seed = 3};
  const std::vector<at::Tensor> x{at::ones({6, 4, 50})};
  const at::Tensor locked = locked_dropout(0.4)->forward(x, {}, {}, training, nullptr);
  for (std::int64_t t = 1; t < 6; ++t) EXPECT_TRUE(at::equal(locked[t], locked[0]));
  EXPECT_FALSE(at::equal(locked[0][0], locked[0][1]));
  EXPECT_NEAR(locked.mean().item<double>(), 1, 0.2);

  const at::Tensor tokens = integers({0, 1, 2, 3, 4, 5, 6, 7, 7, 6, 5, 4, 3, 2, 1, 0}, {2, 8});
  const std::vector<at::Tensor> embedded{at::ones({2, 8, 5}), tokens};
  const at::Tensor rows = row_dropout(8, 0.5)->forward(embedded, {}, {}, training, nullptr);
  EXPECT_TRUE(at::equal(rows[0], rows[1].flip(0)));
  for (std::int64_t t = 0; t < 8; ++t) {
    const double kept = rows[0][t][0].item<double>();
    EXPECT_TRUE(kept == 0 || kept == 2);
    EXPECT_EQ(rows[0][t].sum().item<double>(), 5 * kept);
  }
  const double kept = rows.sum().item<double>();
  EXPECT_TRUE(kept > 0 && kept < 2 * 2 * 8 * 5);
  for (const LayerPtr& layer : {locked_dropout(0.4), row_dropout(8, 0.4)})
    EXPECT_TRUE(at::equal(layer->forward(embedded, {}, {}, {.training = false}, nullptr), embedded[0]));
}

TEST(BidirectionalLstm, IsOneLstmEachWayOverEachSentenceAlone) {
  const LayerPtr both = bidirectional_lstm({.in = 3, .hidden = 4}), one = lstm({.in = 3, .hidden = 4});
  const std::vector<at::Tensor> p = initial(both, at::kDouble);
  const std::int64_t lengths[] = {5, 2, 1}, longest = 5;
  const at::Tensor x = at::randn({longest, 3, 3}, at::kDouble);
  at::Tensor tokens = at::zeros({longest, 3}, at::kLong);
  for (std::int64_t b = 0; b < 3; ++b) tokens.select(1, b).narrow(0, 0, lengths[b]).fill_(7);
  const at::Tensor output = output_of(both, {x, tokens}, p);
  for (std::int64_t b = 0; b < 3; ++b) {
    const at::Tensor alone = x.narrow(1, b, 1).narrow(0, 0, lengths[b]);
    const at::Tensor forward = output_of(one, {alone}, {p.begin(), p.begin() + 4});
    const at::Tensor backward = output_of(one, {alone.flip(0)}, {p.begin() + 4, p.end()}).flip(0);
    const at::Tensor here = output.narrow(1, b, 1);
    EXPECT_TRUE(at::allclose(here.narrow(0, 0, lengths[b]).narrow(2, 0, 4), forward, 0, 1e-12));
    EXPECT_TRUE(at::allclose(here.narrow(0, 0, lengths[b]).narrow(2, 4, 4), backward, 0, 1e-12));
    EXPECT_EQ(here.narrow(0, lengths[b], longest - lengths[b]).abs().sum().item<double>(), 0);
  }
}

TEST(SinusoidalPositions, HaveTheKnownSecondRow) {
  const at::Tensor x = at::zeros({1, 2, 8}, at::kDouble);
  EXPECT_TRUE(at::allclose(
      output_of(sinusoidal_positions(8, 1), {x}, {})[0][1],
      doubles({.841471, .540302, .099833, .995004, .010000, .999950, .001000, 1.000000}, {8}), 0, 1e-6));
}

TEST(Gelu, HasBothForms) {
  const at::Tensor one = doubles({1}, {1});
  EXPECT_NEAR(output_of(gelu(), {one}, {}).item<double>(), .841344746, 1e-9);
  EXPECT_NEAR(output_of(gelu(GeluForm::Tanh), {one}, {}).item<double>(), .841191991, 1e-9);
}

TEST(SelfAttention, LooksAtNothingLaterAndAtNoPadding) {
  const at::Tensor x = at::randn({1, 4, 12});
  const LayerPtr causal = self_attention({.heads = 2, .causal = Causal::Yes, .packed = true});
  at::Tensor changed = x.clone();
  changed.select(1, 3).add_(1);
  EXPECT_TRUE(at::equal(output_of(causal, {x}, {}).narrow(1, 0, 3),
                        output_of(causal, {changed}, {}).narrow(1, 0, 3)));
  EXPECT_FALSE(at::equal(output_of(causal, {x}, {}), output_of(causal, {changed}, {})));
  const LayerPtr masked = self_attention({.heads = 2, .packed = true, .masked = true});
  const at::Tensor tokens = integers({5, 6, 7, 0}, {1, 4});
  EXPECT_TRUE(at::equal(output_of(masked, {x, tokens}, {}).narrow(1, 0, 3),
                        output_of(masked, {changed, tokens}, {}).narrow(1, 0, 3)));
}

TEST(Embedding, PaddingStartsAtZeroAndStays) {
  const LayerPtr layer = embedding({.vocabulary = 5, .features = 4, .padding = 2});
  const std::vector<at::Tensor> p = initial(layer);
  EXPECT_EQ(p[0][2].abs().sum().item<float>(), 0);
  EXPECT_GT(p[0][1].abs().sum().item<float>(), 0);
  at::NoGradGuard no_grad;
  Saved saved;
  layer->forward(std::vector{integers({2, 1, 2}, {3})}, p, {}, {}, &saved);
  std::vector<at::Tensor> grads{at::zeros({5, 4})};
  layer->backward_weight(at::ones({3, 4}), saved, grads);
  EXPECT_EQ(grads[0].sum().item<float>(), 4);
  EXPECT_EQ(grads[0][1].sum().item<float>(), 4);
}

// -- LibTorch's own kernels, outputs and all gradients
// ---------------------------------------------------------

struct Outcome {
  at::Tensor output;
  std::vector<at::Tensor> gradients;  // gradients of floating inputs, then of parameters
};

Outcome ours(const LayerPtr& layer, const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& p,
             const at::Tensor& grad) {
  at::NoGradGuard no_grad;
  Saved saved;
  Outcome result{.output = layer->forward(inputs, p, {}, {}, &saved)};
  std::vector<at::Tensor> sums;
  for (const at::Tensor& one : p) sums.push_back(at::zeros_like(one));
  bool needs[8] = {};
  for (std::size_t i = 0; i < inputs.size(); ++i) needs[i] = inputs[i].is_floating_point();
  for (at::Tensor& one : layer->backward_input(grad, p, saved, {needs, inputs.size()})) {
    if (one.defined()) result.gradients.push_back(std::move(one));
  }
  layer->backward_weight(grad, saved, sums);
  result.gradients.insert(result.gradients.end(), sums.begin(), sums.end());
  return result;
}

/// `leaves`: those that gradients are asked for.
template <class Function>
Outcome theirs(std::vector<at::Tensor> leaves, const at::Tensor& grad, Function&& function) {
  for (at::Tensor& leaf : leaves) leaf = leaf.detach().clone().requires_grad_(true);
  const at::Tensor output = function(leaves);
  auto gradients = torch::autograd::grad({output}, leaves, {grad});
  return {output.detach(), {gradients.begin(), gradients.end()}};
}

void expect_near(const Outcome& a, const Outcome& b, at::ScalarType dtype) {
  const double tolerance = dtype == at::kDouble ? 1e-10 : 1e-5;
  const auto near = [&](const at::Tensor& x, const at::Tensor& y, const std::string& what) {
    ASSERT_EQ(x.sizes(), y.sizes()) << what;
    EXPECT_LE(x.sub(y).abs().max().item().toDouble(), tolerance * y.abs().max().item().toDouble())
        << what << " " << dtype;
  };
  near(a.output, b.output, "output");
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  for (std::size_t i = 0; i < a.gradients.size(); ++i)
    near(a.gradients[i], b.gradients[i], "gradient " + std::to_string(i));
}

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kDouble};

TEST(Embedding, RowsAreScaledToTheNormAsLibTorchDoes) {
  const at::Tensor tokens = integers({4, 1, 1, 6, 3, 4}, {2, 3});
  for (const double p : {1.0, 2.0, 3.0}) {
    const LayerPtr layer =
        embedding({.vocabulary = 40, .features = 5, .padding = 3, .max_norm = 0.75, .norm_type = p});
    for (const at::ScalarType dtype : kTypes) {
      const at::Tensor weight = initial(layer)[0].to(dtype), before = weight.clone();
      const at::Tensor grad = at::ones({2, 3, 5}, dtype);
      at::Tensor scaled = weight.clone();
      const Outcome expected = theirs({weight}, grad, [&](std::vector<at::Tensor>& leaves) {
        {
          at::NoGradGuard no_grad;
          at::embedding_renorm_(leaves[0], tokens, 0.75, p);
          scaled = leaves[0].detach().clone();
        }
        return at::embedding(leaves[0], tokens, 3);
      });
      at::NoGradGuard no_grad;
      const auto evaluate = [&] {
        return layer->forward(std::vector{tokens}, std::vector{weight}, {}, {.training = false}, nullptr);
      };
      const at::Tensor evaluated = evaluate();
      EXPECT_TRUE(at::equal(weight, before)) << "evaluation writes nothing";
      const Outcome found = ours(layer, {tokens}, {weight}, grad);
      expect_near(found, expected, dtype);
      EXPECT_TRUE(at::equal(evaluated, found.output)) << p;
      EXPECT_TRUE(at::allclose(weight, scaled, 1e-6, 1e-7)) << "what was read is scaled, nothing else";
      EXPECT_TRUE(at::equal(weight[2], before[2]) && !at::equal(weight[1], before[1]));
      const at::Tensor once = weight.clone();
      layer->forward(std::vector{tokens}, std::vector{weight}, {}, {}, nullptr);
      EXPECT_TRUE(at::equal(weight, once)) << "reading again changes nothing, whatever the norm rounds to";
    }
  }
}

/// A norm far below the rows' is where a scaled row is longer than it by rounding most often.
TEST(Embedding, RowsThatAreScaledStayAsTheyAre) {
  at::NoGradGuard no_grad;
  const LayerPtr layer = embedding({.vocabulary = 3000, .features = 16, .deviation = 100, .max_norm = 1});
  const std::vector<at::Tensor> p = initial(layer);
  const at::Tensor tokens = at::arange(3000, at::kLong);
  layer->forward(std::vector{tokens}, p, {}, {}, nullptr);
  const at::Tensor once = p[0].clone();
  layer->forward(std::vector{tokens.flip({0})}, p, {}, {}, nullptr);
  EXPECT_TRUE(at::equal(p[0], once));
}

TEST(Lstm, EqualsLibTorchs) {
  for (const at::ScalarType dtype : kTypes) {
    const LayerPtr layer = lstm({.in = 7, .hidden = 12});
    const std::vector<at::Tensor> p = initial(layer, dtype);
    const at::Tensor x = at::randn({9, 4, 7}, dtype), grad = at::randn({9, 4, 12}, dtype);
    const at::Tensor zero = at::zeros({1, 4, 12}, dtype);
    const Outcome torch = theirs({x, p[0], p[1], p[2], p[3]}, grad, [&](const auto& leaves) {
      const std::vector<at::Tensor> weights(leaves.begin() + 1, leaves.end()), states{zero, zero};
      return std::get<0>(at::lstm(leaves[0], states, weights, true, 1, 0.0, true, false, false));
    });
    expect_near(ours(layer, {x}, p, grad), torch, dtype);
  }
}

TEST(BidirectionalLstm, EqualsLibTorchsOverPackedSentences) {
  for (const at::ScalarType dtype : kTypes) {
    const LayerPtr layer = bidirectional_lstm({.in = 7, .hidden = 6});
    const std::vector<at::Tensor> p = initial(layer, dtype);
    const at::Tensor x = at::randn({9, 4, 7}, dtype), grad = at::randn({9, 4, 12}, dtype);
    const at::Tensor lengths = integers({9, 6, 6, 1}, {4});
    at::Tensor tokens = at::zeros({9, 4}, at::kLong);
    for (std::int64_t b = 0; b < 4; ++b)
      tokens.select(1, b).narrow(0, 0, lengths[b].item().toLong()).fill_(7);
    std::vector<at::Tensor> leaves{x};
    leaves.insert(leaves.end(), p.begin(), p.end());
    const at::Tensor zero = at::zeros({2, 4, 6}, dtype);
    const Outcome torch = theirs(leaves, grad, [&](const auto& all) {
      const std::vector<at::Tensor> weights(all.begin() + 1, all.end()), states{zero, zero};
      const auto [data, sizes] = at::_pack_padded_sequence(all[0], lengths, false);
      const at::Tensor packed = std::get<0>(at::lstm(data, sizes, states, weights, true, 1, 0.0, true, true));
      return std::get<0>(at::_pad_packed_sequence(packed, sizes, false, 0, 9));
    });
    expect_near(ours(layer, {x, tokens}, p, grad), torch, dtype);
  }
}

TEST(SelfAttention, EqualsLibTorchs) {
  for (const at::ScalarType dtype : kTypes) {
    for (const Causal causal : {Causal::No, Causal::Yes}) {
      const LayerPtr layer = self_attention({.heads = 3, .causal = causal, .masked = causal == Causal::No});
      const at::Tensor q = at::randn({2, 5, 12}, dtype), k = at::randn({2, 5, 12}, dtype),
                       v = at::randn({2, 5, 12}, dtype), grad = at::randn({2, 5, 12}, dtype);
      const at::Tensor tokens = integers({1, 2, 3, 0, 0, 1, 2, 3, 4, 5}, {2, 5});
      const Outcome torch = theirs({q, k, v}, grad, [&](const auto& leaves) {
        const auto heads = [](const at::Tensor& x) { return x.view({2, 5, 3, 4}).transpose(1, 2); };
        std::optional<at::Tensor> mask;
        if (causal == Causal::No) mask = tokens.ne(0).view({2, 1, 1, 5}).expand({2, 3, 5, 5});
        return at::scaled_dot_product_attention(heads(leaves[0]), heads(leaves[1]), heads(leaves[2]), mask,
                                                0.0, causal == Causal::Yes)
            .transpose(1, 2)
            .reshape({2, 5, 12});
      });
      std::vector<at::Tensor> inputs{q, k, v};
      if (causal == Causal::No) inputs.push_back(tokens);
      expect_near(ours(layer, inputs, {}, grad), torch, dtype);
    }
  }
}

/// The formula as a whole tensor, without tiles.
TEST(BahdanauAttention, EqualsTheFormulaInLibTorchsOperations) {
  for (const at::ScalarType dtype : kTypes) {
    // The gradient of normalize_scalar is a sum that may nearly vanish: not with these values.
    at::manual_seed(1);
    const LayerPtr layer = bahdanau_attention({.features = 32});
    const std::vector<at::Tensor> p = initial(layer, dtype);
    const at::Tensor y = at::randn({40, 8, 32}, dtype), e = at::randn({70, 8, 32}, dtype),
                     grad = at::randn({40, 8, 32}, dtype);
    at::Tensor tokens = at::ones({70, 8}, at::kLong);
    for (std::int64_t b = 0; b < 8; ++b) tokens.select(1, b).narrow(0, 70 - 7 * b, 7 * b).zero_();
    std::vector<at::Tensor> leaves{y, e};
    leaves.insert(leaves.end(), p.begin(), p.end());
    const Outcome torch = theirs(leaves, grad, [&](const auto& l) {
      const at::Tensor q = at::matmul(l[0], l[2].t()),
                       k = at::matmul(l[1], l[3].t());  // [T, B, H], [S, B, H]
      const at::Tensor z = at::tanh(q.unsqueeze(1).add(k.unsqueeze(0)).add(l[6]));
      const at::Tensor s =
          at::matmul(z, l[4].div(l[4].norm()).mul(l[5])).masked_fill(tokens.eq(0).unsqueeze(0), -65504.0);
      return at::softmax(s, 1).unsqueeze(3).mul(l[1].unsqueeze(0)).sum(1);
    });
    expect_near(ours(layer, {y, e, tokens}, p, grad), torch, dtype);
  }
}

}  // namespace
}  // namespace millrace
