// One suite for every layer: the joint backward and the split one agree bit for bit, and with LibTorch's
// autograd too: bit for bit, or within rounding where a layer adds in another order.
#include <gtest/gtest.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/group_norm.h>
#include <ATen/ops/instance_norm.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/pad.h>
#include <ATen/ops/prelu.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>

#include "runtime/base/error.h"
#include "runtime/kernels/philox.h"
#include "runtime/layers/autograd_layer.h"
#include "runtime/layers/dropout_mask.h"
#include "runtime/layers/initialise.h"
#include "tests/layers/layer_cases.h"

namespace millrace {
namespace {

using Case = LayerCase;

std::vector<Case> cases() {
  return layer_cases();
}

at::Tensor random_tensor(const Shape& shape, std::uint64_t seed, at::ScalarType dtype = at::kFloat) {
  // Wide enough for the bends of relu6 and the hard functions.
  return at::empty(shape, dtype).normal_(0, 3, at::detail::createCPUGenerator(seed));
}

at::Tensor random_integers(const Shape& shape, std::int64_t limit, std::uint64_t seed) {
  return at::empty(shape, at::kLong).random_(0, limit, at::detail::createCPUGenerator(seed));
}

struct Tensors {
  std::vector<at::Tensor> inputs, parameters, buffers;
  at::Tensor grad;
};

Tensors tensors_for(const Case& c, at::ScalarType dtype) {
  Tensors t;
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    const std::int64_t limit = i < c.limits.size() ? c.limits[i] : 0;
    t.inputs.push_back(limit > 0 ? random_integers(c.inputs[i], limit, 10 + i)
                                 : random_tensor(c.inputs[i], 10 + i, dtype));
  }
  const auto specs = c.layer->parameters();
  const auto values = initialise(specs, 1, c.name);
  for (std::size_t i = 0; i < specs.size(); ++i)
    (specs[i].is_buffer ? t.buffers : t.parameters)
        .push_back(specs[i].is_counter ? values[i] : values[i].to(dtype));
  t.grad = random_tensor(c.layer->output_shape(c.inputs), 99, dtype);
  return t;
}

struct Gradients {
  at::Tensor output;
  std::vector<at::Tensor> inputs, parameters;
};

constexpr CallContext kContext{.training = true, .random_seed = 77};

Gradients run(const Case& c, bool split, at::ScalarType dtype = at::kFloat) {
  at::NoGradGuard no_grad;
  Tensors t = tensors_for(c, dtype);
  Saved saved;
  Gradients g{.output = c.layer->forward(t.inputs, t.parameters, t.buffers, kContext, &saved)};
  for (const at::Tensor& p : t.parameters) g.parameters.push_back(at::zeros_like(p));
  bool needs[4] = {};
  for (std::size_t i = 0; i < t.inputs.size(); ++i) needs[i] = t.inputs[i].is_floating_point();
  const std::span<const bool> wanted(needs, t.inputs.size());
  if (split) {
    g.inputs = c.layer->backward_input(t.grad, t.parameters, saved, wanted);
    c.layer->backward_weight(t.grad, saved, g.parameters);
  } else {
    g.inputs = c.layer->backward(t.grad, t.parameters, saved, wanted, g.parameters);
  }
  return g;
}

Gradients run_autograd(const Case& c, at::ScalarType dtype = at::kFloat) {
  Tensors t = tensors_for(c, dtype);
  std::vector<at::Tensor> leaves;
  for (auto* list : {&t.inputs, &t.parameters}) {
    for (at::Tensor& leaf : *list) {
      if (!leaf.is_floating_point()) continue;
      leaf.requires_grad_(true);
      leaves.push_back(leaf);
    }
  }
  Gradients g{.output = c.layer->forward(t.inputs, t.parameters, t.buffers, kContext, nullptr)};
  auto all = torch::autograd::grad({g.output}, leaves, {t.grad}, /*retain_graph=*/{}, /*create_graph=*/false,
                                   /*allow_unused=*/true);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!all[i].defined()) all[i] = at::zeros_like(leaves[i]);
  }
  auto next = all.begin();
  for (const at::Tensor& input : t.inputs)
    g.inputs.push_back(input.is_floating_point() ? *next++ : at::Tensor());
  g.parameters.assign(next, all.end());
  return g;
}

void expect_equal(const Gradients& a, const Gradients& b, const std::string& what) {
  EXPECT_TRUE(at::equal(a.output, b.output)) << what << ": output";
  for (std::size_t i = 0; i < a.inputs.size(); ++i) {
    ASSERT_EQ(a.inputs[i].defined(), b.inputs[i].defined()) << what << ": gradient of input " << i;
    if (a.inputs[i].defined()) {
      EXPECT_TRUE(at::equal(a.inputs[i], b.inputs[i])) << what << ": gradient of input " << i;
    }
  }
  for (std::size_t i = 0; i < a.parameters.size(); ++i)
    EXPECT_TRUE(at::equal(a.parameters[i], b.parameters[i])) << what << ": gradient of parameter " << i;
}

/// `tolerance`: of the largest element.
void expect_near(const Gradients& a, const Gradients& b, double tolerance, const std::string& what) {
  const auto near = [&](const at::Tensor& x, const at::Tensor& y, const std::string& which) {
    ASSERT_EQ(x.defined(), y.defined()) << what << ": " << which;
    if (!x.defined()) return;
    ASSERT_EQ(x.sizes(), y.sizes()) << what << ": " << which;
    const double scale = std::max(y.abs().max().item().toDouble(), 1e-3);
    EXPECT_LE(x.sub(y).abs().max().item().toDouble(), tolerance * scale) << what << ": " << which;
  };
  near(a.output, b.output, "output");
  for (std::size_t i = 0; i < a.inputs.size(); ++i)
    near(a.inputs[i], b.inputs[i], "gradient of input " + std::to_string(i));
  for (std::size_t i = 0; i < a.parameters.size(); ++i)
    near(a.parameters[i], b.parameters[i], "gradient of parameter " + std::to_string(i));
}

class EveryLayer : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override { at::set_num_threads(1); }
};

// float32 sums of up to 9,216 terms (attention in tiles), each in an order of its own: twice the rounding of
// such a sum, sqrt(9216) 2^-24, and a margin for a BLAS that this was not tried on.
constexpr double kOtherOrder = 2e-5;

TEST_P(EveryLayer, SplitEqualsJointBackward) {
  expect_equal(run(GetParam(), true), run(GetParam(), false), "split, joint");
}
TEST_P(EveryLayer, EqualsAutograd) {
  if (GetParam().order == Order::Own) {
    expect_near(run(GetParam(), true), run_autograd(GetParam()), kOtherOrder, "ours, autograd");
    expect_near(run(GetParam(), true, at::kDouble), run_autograd(GetParam(), at::kDouble), 1e-10,
                "ours, autograd, float64");
    return;
  }
  expect_equal(run(GetParam(), true), run_autograd(GetParam()), "ours, autograd");
}

TEST_P(EveryLayer, TheFallbackLayerGivesTheSameBits) {
  Case fallback = GetParam();
  fallback.layer = through_autograd(fallback.layer);
  if (GetParam().order == Order::Own) {
    expect_near(run(fallback, true), run(GetParam(), true), kOtherOrder, "fallback, ours");
    expect_equal(run(fallback, true), run(fallback, false), "fallback, split, joint");
    return;
  }
  expect_equal(run(fallback, true), run(GetParam(), true), "fallback, ours");
  expect_equal(run(fallback, false), run(GetParam(), false), "fallback, ours, joint");
}

/// Therefore replicas with one microbatch each add up to the same bytes as one process.
TEST_P(EveryLayer, AMicrobatchAddsTheSameWhateverTheSumHolds) {
  at::NoGradGuard no_grad;
  const Case& c = GetParam();
  const auto added_to = [&](const std::vector<at::Tensor>& before) {
    Tensors t = tensors_for(c, at::kFloat);
    Saved saved;
    c.layer->forward(t.inputs, t.parameters, t.buffers, kContext, &saved);
    bool needs[4] = {};
    std::vector<at::Tensor> sums;
    for (const at::Tensor& one : before) sums.push_back(one.clone());
    c.layer->backward_input(t.grad, t.parameters, saved, std::span<const bool>(needs, t.inputs.size()));
    c.layer->backward_weight(t.grad, saved, sums);
    return sums;
  };
  std::vector<at::Tensor> zeros, others;
  for (const at::Tensor& p : tensors_for(c, at::kFloat).parameters) {
    zeros.push_back(at::zeros_like(p));
    others.push_back(random_tensor(p.sizes().vec(), 55 + zeros.size()));
  }
  const std::vector<at::Tensor> alone = added_to(zeros), onto = added_to(others);
  for (std::size_t i = 0; i < alone.size(); ++i)
    EXPECT_TRUE(at::equal(onto[i], others[i].add(alone[i]))) << "parameter " << i;
}

TEST_P(EveryLayer, OutputHasTheDeclaredShape) {
  EXPECT_EQ(run(GetParam(), false).output.sizes().vec(), GetParam().layer->output_shape(GetParam().inputs));
}

TEST_P(EveryLayer, TakesOnlyWhatItDeclares) {
  const auto& layer = *GetParam().layer;
  if (layer.parameters().empty() || layer.kind() == "embedding") return;
  if (layer.parameters().front().shape == Shape{1}) return;  // one for all channels
  Shape wrong = GetParam().inputs[0];
  wrong[wrong.size() == 3 && layer.kind() != "conv1d" ? 2 : 1] += 1;
  const Shape inputs[] = {wrong};
  EXPECT_THROW(layer.output_shape(inputs), ConfigError);
}

INSTANTIATE_TEST_SUITE_P(Layers, EveryLayer, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(SeveralInputs, ThatDoNotFitAreRefused) {
  const std::vector<Shape> other_height{{2, 3, 4, 4}, {2, 3, 5, 4}}, other_rank{{2, 3, 4}, {2, 3}},
      other_channels{{2, 3, 4, 4}, {2, 4, 1, 1}}, one{{2, 3, 4, 4}};
  EXPECT_THROW(concat()->output_shape(other_height), ConfigError);
  EXPECT_THROW(concat()->output_shape(other_rank), ConfigError);
  EXPECT_THROW(scale_channels()->output_shape(other_channels), ConfigError);
  EXPECT_THROW(scale_channels()->output_shape(one), ConfigError);
  const std::vector<Shape> other_clouds{{2, 5, 3}, {3, 3, 3}}, other_size{{2, 5, 3}, {2, 4, 4}};
  EXPECT_THROW(transform_points()->output_shape(other_clouds), ConfigError);
  EXPECT_THROW(transform_points()->output_shape(other_size), ConfigError);
  EXPECT_THROW(concat_global()->output_shape(other_clouds), ConfigError);
}

at::Tensor forward_of(const LayerPtr& layer, std::vector<at::Tensor> inputs,
                      std::vector<at::Tensor> parameters = {}) {
  at::NoGradGuard no_grad;
  return layer->forward(inputs, parameters, {}, kContext, nullptr);
}

/// The layer gives `theirs` of its inputs and parameters, and the gradients that LibTorch's autograd finds of
/// it, in float64.
void expect_theirs(const Case& c, const std::function<at::Tensor(const Tensors&)>& theirs,
                   const std::string& what) {
  at::AutoGradMode with_grad(true);
  Tensors t = tensors_for(c, at::kDouble);
  std::vector<at::Tensor> leaves;
  for (auto* list : {&t.inputs, &t.parameters}) {
    for (at::Tensor& leaf : *list)
      if (leaf.is_floating_point()) leaves.push_back(leaf.requires_grad_(true));
  }
  Gradients expected{.output = theirs(t)};
  const auto all = torch::autograd::grad({expected.output}, leaves, {t.grad});
  auto next = all.begin();
  for (const at::Tensor& input : t.inputs)
    expected.inputs.push_back(input.is_floating_point() ? *next++ : at::Tensor());
  expected.parameters.assign(next, all.end());
  at::NoGradGuard no_grad;
  expect_near(run(c, true, at::kDouble), expected, 1e-10, what);
}

/// Compares with LibTorch's own functions of padding and convolution.
TEST(Convolution, PadsAndDilatesAsLibTorchDoes) {
  at::NoGradGuard no_grad;
  for (const auto& [mode, name] : {std::pair{PaddingMode::Zeros, "constant"},
                                   {PaddingMode::Reflect, "reflect"},
                                   {PaddingMode::Replicate, "replicate"},
                                   {PaddingMode::Circular, "circular"}}) {
    for (const int dimensions : {1, 2}) {
      const ConvOptions options{.in = 3, .out = 4, .padding = {1, 2}, .dilation = 2, .padding_mode = mode};
      const at::Tensor x = random_tensor(dimensions == 1 ? Shape{2, 3, 9} : Shape{2, 3, 8, 9}, 1);
      const Case c{name, dimensions == 1 ? conv1d(options) : conv2d(options), {x.sizes().vec()}};
      expect_theirs(
          c,
          [&, mode = name](const Tensors& t) {
            const at::Tensor of =
                at::pad(t.inputs[0], dimensions == 1 ? Shape{2, 2} : Shape{2, 2, 1, 1}, mode);
            return dimensions == 1
                       ? at::conv1d(of, t.parameters[0], t.parameters[1], 1, at::IntArrayRef{0}, 2)
                       : at::conv2d(of, t.parameters[0], t.parameters[1], 1, at::IntArrayRef{0}, 2);
          },
          c.name);
      const std::vector<at::Tensor> p = tensors_for(c, at::kFloat).parameters;
      const at::Tensor padded = at::pad(x, dimensions == 1 ? Shape{2, 2} : Shape{2, 2, 1, 1}, name);
      const at::Tensor expected = dimensions == 1 ? at::conv1d(padded, p[0], p[1], 1, at::IntArrayRef{0}, 2)
                                                  : at::conv2d(padded, p[0], p[1], 1, at::IntArrayRef{0}, 2);
      EXPECT_TRUE(at::allclose(forward_of(c.layer, {x}, p), expected, 1e-5, 1e-5))
          << name << " " << dimensions;
    }
  }
  const std::vector<Shape> small{{2, 3, 2, 2}};
  for (const auto& [mode, padding] : {std::pair{PaddingMode::Reflect, 2}, {PaddingMode::Circular, 3}}) {
    const LayerPtr layer = conv2d({.in = 3, .out = 4, .padding = padding, .padding_mode = mode});
    EXPECT_THROW(layer->output_shape(small), ConfigError) << "less than what is read beyond an edge";
  }
}

TEST(Norms, AreLibTorchs) {
  at::NoGradGuard no_grad;
  const at::Tensor x = random_tensor({3, 6, 4, 5}, 1), weight = random_tensor({6}, 2),
                   bias = random_tensor({6}, 3);
  EXPECT_TRUE(
      at::equal(forward_of(group_norm(2, 6), {x}, {weight, bias}), at::group_norm(x, 2, weight, bias)));
  EXPECT_TRUE(at::allclose(forward_of(instance_norm(6), {x}),
                           at::instance_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, false), 1e-4, 1e-5));
  EXPECT_TRUE(at::equal(forward_of(prelu(6), {x}, {weight}), at::prelu(x, weight)));
  const Shape shape = x.sizes().vec();
  expect_theirs(
      {"group_norm", group_norm(2, 6), {shape}},
      [](const Tensors& t) { return at::group_norm(t.inputs[0], 2, t.parameters[0], t.parameters[1]); },
      "group_norm");
  expect_theirs(
      {"instance_norm", instance_norm(6, {.affine = true}), {shape}},
      [](const Tensors& t) {
        return at::instance_norm(t.inputs[0], t.parameters[0], t.parameters[1], {}, {}, true, 0.1, 1e-5,
                                 false);
      },
      "instance_norm");
  for (const std::int64_t slopes : {1, 6})
    expect_theirs(
        {"prelu", prelu(slopes), {shape}},
        [](const Tensors& t) { return at::prelu(t.inputs[0], t.parameters[0]); }, "prelu");
  EXPECT_THROW(instance_norm(6)->output_shape(std::vector<Shape>{{3, 6, 1, 1}}), ConfigError)
      << "one value is no statistics";
}

TEST(MaxUnpool, PutsWhatWasPooledWhereItWas) {
  at::NoGradGuard no_grad;
  const at::Tensor x = random_tensor({2, 3, 6, 7}, 1);
  const LayerPtr indices = max_pool2d_indices(2, 2);
  const at::Tensor values = forward_of(max_pool2d(2, 2), {x}), places = forward_of(indices, {x});
  const auto [expected_values, expected_places] = at::max_pool2d_with_indices(x, {2, 2}, {2, 2});
  EXPECT_TRUE(at::equal(values, expected_values));
  EXPECT_TRUE(at::equal(places, expected_places));
  const TensorSpec made = indices->outputs(std::vector{TensorSpec{.shape = x.sizes().vec()}}).front();
  EXPECT_EQ(made.shape, places.sizes().vec());
  EXPECT_EQ(made.dtype, at::kLong);
  EXPECT_FALSE(made.differentiable);
  const at::Tensor unpooled = forward_of(max_unpool2d(6, 7), {values, places});
  const at::Tensor there = unpooled.ne(0);
  EXPECT_EQ(there.sum().item<std::int64_t>(), values.numel());
  EXPECT_TRUE(at::equal(unpooled, x.masked_fill(there.logical_not(), 0)));
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  const at::Tensor deterministic = forward_of(max_unpool2d(6, 7), {values, places});
  at::globalContext().setDeterministicAlgorithms(false, false);
  EXPECT_TRUE(at::equal(deterministic, unpooled));
}

TEST(Dropout, OfChannelsDropsOrKeepsThemWhole) {
  at::NoGradGuard no_grad;
  const at::Tensor output = forward_of(dropout2d(0.25), {at::empty({40, 30, 3, 2}).fill_(1)}).flatten(2);
  EXPECT_TRUE(at::equal(output, output.narrow(2, 0, 1).expand_as(output)));
  EXPECT_NEAR(double(output.narrow(2, 0, 1).eq(0).sum().item<std::int64_t>()) / 1200, 0.25, 0.05);
  EXPECT_FLOAT_EQ(output.max().item<float>(), 1 / 0.75F);
}

TEST(AvgPool, CountsWhatItIsToldTo) {
  at::NoGradGuard no_grad;
  const at::Tensor ones = at::empty({1, 1, 2, 2}).fill_(1);
  const auto corner = [&](bool count_padding) {
    const auto layer = avg_pool2d({.kernel = 3, .stride = 1, .padding = 1, .count_padding = count_padding});
    return layer->forward(std::vector{ones}, {}, {}, kContext, nullptr).flatten()[0].item<float>();
  };
  EXPECT_FLOAT_EQ(corner(true), 4.0F / 9);
  EXPECT_FLOAT_EQ(corner(false), 1);
}

TEST(Embedding, EqualsAutogradBitForBit) {
  const LayerPtr layer = embedding({.vocabulary = 11, .features = 4});
  at::Tensor ids =
      at::empty({3, 5}, at::kLong).random_(0, 11, at::detail::createCPUGenerator(std::uint64_t{1}));
  at::Tensor weight = initialise(layer->parameters(), 1, "e")[0];
  const at::Tensor grad = random_tensor({3, 5, 4}, 2);
  at::Tensor ours = at::zeros_like(weight);
  {
    at::NoGradGuard no_grad;
    Saved saved;
    EXPECT_EQ(layer->forward(std::vector{ids}, std::vector{weight}, {}, kContext, &saved).sizes().vec(),
              layer->output_shape(std::vector<Shape>{{3, 5}}));
    std::vector<at::Tensor> grads{ours};
    layer->backward_weight(grad, saved, grads);
  }
  weight.requires_grad_(true);
  const at::Tensor output = layer->forward(std::vector{ids}, std::vector{weight}, {}, kContext, nullptr);
  EXPECT_TRUE(at::equal(ours, torch::autograd::grad({output}, {weight}, {grad})[0]));
}

/// Hooks that make a device's own generator, without such a device.
class PretendedHooks final : public at::PrivateUse1HooksInterface {
 public:
  at::Generator getNewGenerator(at::DeviceIndex index) const override {
    asked.push_back(index);
    return at::detail::createCPUGenerator(0);
  }
  bool isBuilt() const override { return false; }
  bool isAvailable() const override { return false; }
  mutable std::vector<int> asked;
};

TEST(Dropout, ADeviceDrawsByAGeneratorOfItsOwn) {
  static PretendedHooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  const at::Generator there = seeded_generator(at::Device(at::kPrivateUse1, 3), 71);
  EXPECT_EQ(hooks.asked, std::vector<int>{3});
  EXPECT_EQ(there.current_seed(), 71u);
  // The CPU counts: nothing is left over from one mask to the next.
  const at::Tensor like = random_tensor({40, 3}, 1);
  at::Tensor mask = at::empty({40, 3});
  draw_mask(mask.mutable_data_ptr<float>(), mask.numel(), 0.25, 1 / 0.75F, 71);
  for (const MasksFrom from : {MasksFrom::Device, MasksFrom::Host}) {
    EXPECT_TRUE(at::equal(dropout_mask(like, 0.25, 71, from), mask));
    EXPECT_TRUE(at::equal(dropout_mask(like, 0.25, 71, from), mask));
  }
  EXPECT_EQ(hooks.asked.size(), 1u);  // the hooks are not asked for the CPU
}

/// A job's rows are what it draws by itself, whatever the others draw.
TEST(Dropout, JobsDrawWhatEachDrawsByItself) {
  const at::Tensor like = random_tensor({12, 5}, 1);
  const std::uint64_t seeds[] = {7, 8, 9};
  const at::Tensor all = dropout_mask(like, 0.5, CallContext{.random_seed = 7, .job_seeds = seeds});
  for (int job = 0; job < 3; ++job) {
    const at::Tensor own = dropout_mask(like.narrow(0, 0, 4), 0.5, CallContext{.random_seed = seeds[job]});
    EXPECT_TRUE(at::equal(all.narrow(0, 4 * job, 4), own)) << job;
  }
}

TEST(Dropout, DependsOnTheSeedAlone) {
  at::NoGradGuard no_grad;
  const LayerPtr layer = dropout(0.5);
  const at::Tensor input = random_tensor({100}, 1);
  const auto at_seed = [&](std::uint64_t seed) {
    return layer->forward(std::vector{input}, {}, {}, {true, seed}, nullptr);
  };
  EXPECT_TRUE(at::equal(at_seed(5), at_seed(5)));
  EXPECT_FALSE(at::equal(at_seed(5), at_seed(6)));
  EXPECT_TRUE(at::equal(layer->forward(std::vector{input}, {}, {}, {false, 5}, nullptr), input));
}

}  // namespace
}  // namespace millrace
