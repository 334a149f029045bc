// Losses as the CPU takes them and as a device takes them.
#include <gtest/gtest.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/add.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/binary_cross_entropy.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/diff.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_matrix_norm.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/nll_loss_backward.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "runtime/base/error.h"
#include "runtime/layers/dice_cross_entropy.h"
#include "runtime/layers/head.h"
#include "runtime/layers/interaction_layers.h"
#include "runtime/layers/point_layers.h"

namespace millrace {
namespace {

TEST(CrossEntropy, SumsOfADeviceEqualTheCpus) {
  const HeadPtr head = cross_entropy_head();
  for (int classes : {2, 4, 100}) {
    auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(classes));
    at::Tensor logits = at::empty({64, classes}, at::kFloat).normal_(0, 1, generator);
    logits.narrow(0, 0, 32).round_();  // ties, which count for the lower class
    const at::Tensor target = at::empty({64}, at::kLong).random_(0, classes, generator);
    const at::Tensor inputs[] = {logits, target};
    Saved saved, saved_on_device;
    std::vector<double> expected(4, 0.0);
    head->forward(inputs, &saved, expected);
    const at::Tensor sums = head->forward_on_device(inputs, &saved_on_device);
    ASSERT_EQ(sums.scalar_type(), at::kDouble);
    EXPECT_EQ(std::vector<double>(sums.const_data_ptr<double>(), sums.const_data_ptr<double>() + 4),
              expected);
    EXPECT_EQ(expected[3], 64);
    const bool needs[] = {true, false};
    EXPECT_TRUE(at::equal(head->backward(saved, {.share = 0.5}, needs)[0],
                          head->backward(saved_on_device, {.share = 0.5}, needs)[0]));
  }
}

/// A diverged model knows nothing: its accuracy is 0, on a CPU and on a device.
TEST(Heads, CountANaNAsWrong) {
  at::Tensor scores = at::zeros({4, 6});
  scores[0].fill_(std::nan(""));
  scores[1][5] = std::nan("");
  scores[2][0] = 1;  // right
  scores[3].fill_(HUGE_VAL);
  const at::Tensor target = at::zeros({4}, at::kLong);
  const at::Tensor inputs[] = {scores, target};
  const HeadPtr head = cross_entropy_head();
  std::vector<double> sums(4, 0.0);
  head->forward(inputs, nullptr, sums);
  EXPECT_TRUE(std::isnan(sums[0]));
  EXPECT_EQ((std::vector{sums[1], sums[2]}), (std::vector{1.0, 1.0})) << "top1, top5";
  const at::Tensor on_device = head->forward_on_device(inputs, nullptr);
  EXPECT_EQ(on_device[1].item<double>(), 1);
  EXPECT_EQ(on_device[2].item<double>(), 1);
  std::vector<double> of_jobs(8, 0.0);
  const at::Tensor both[] = {at::stack({scores, scores}), at::stack({target, target})};
  head->over_jobs(2)->forward(both, nullptr, of_jobs);
  for (const std::size_t at : {1, 2, 5, 6}) EXPECT_EQ(of_jobs[at], 1) << at;
  const at::Tensor points[] = {at::full({1, 3, 2}, std::nan("")), at::zeros({1, 3}, at::kLong)};
  const HeadPtr of_points = point_cross_entropy_head(2);
  std::vector<double> counted(of_points->metrics().size() + 1, 0.0);
  of_points->forward(points, nullptr, counted);
  EXPECT_EQ(counted[1], 0) << "accuracy";
  EXPECT_EQ(counted[3], 0) << "part0_right";
}

TEST(CrossEntropy, GradientsHaveTheBitsOfAten) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    for (const auto& [rows, classes, share] : {std::tuple{3, 7, 0.3}, {8, 10, 0.125}, {13, 1000, 1.0 / 7}}) {
      auto generator = at::detail::createCPUGenerator(std::uint64_t{5});
      const at::Tensor scores = at::empty({rows, classes}, dtype).normal_(0, 2, generator),
                       target = at::empty({rows}, at::kLong).random_(0, classes, generator);
      const at::Tensor inputs[] = {scores, target};
      Saved saved;
      std::vector<double> sums(4, 0.0);
      const HeadPtr head = cross_entropy_head();
      head->forward(inputs, &saved, sums);
      const at::Tensor log_p = at::_log_softmax(scores, 1, false);
      const auto number = [&](double value) { return at::full({}, value, scores.options()); };
      const at::Tensor of_log_p = at::nll_loss_backward(number(share), log_p, target, {}, at::Reduction::Mean,
                                                        -100, number(double(rows)));
      const bool needs[] = {true, false};
      EXPECT_TRUE(at::equal(head->backward(saved, {.share = share}, needs)[0],
                            at::_log_softmax_backward_data(of_log_p, log_p, 1, dtype)))
          << rows << " x " << classes;
    }
  }
}

TEST(CrossEntropy, ATargetOutsideTheClassesIsNamed) {
  const at::Tensor inputs[] = {at::zeros({2, 4}), at::full({2}, 4, at::kLong)};
  std::vector<double> sums(4, 0.0);
  EXPECT_THROW(cross_entropy_head()->forward(inputs, nullptr, sums), DataError);
}

TEST(TokenCrossEntropy, IsTorchsWithPaddingAndSmoothing) {
  auto generator = at::detail::createCPUGenerator(std::uint64_t{3});
  at::Tensor scores = at::empty({4, 3, 7}, at::kDouble).normal_(0, 1, generator);
  at::Tensor labels = at::empty({4, 3}, at::kLong).random_(1, 7, generator);
  labels.select(0, 1).zero_();  // padding
  for (const double smoothing : {0.0, 0.1}) {
    const HeadPtr head = token_cross_entropy_head({.ignored = 0, .smoothing = smoothing});
    Saved saved;
    std::vector<double> sums(4, 0.0);
    const at::Tensor inputs[] = {scores.detach(), labels};
    head->forward(inputs, &saved, sums);
    at::Tensor leaf = scores.detach().clone().requires_grad_(true);
    const at::Tensor loss = at::cross_entropy_loss(leaf.reshape({-1, 7}), labels.reshape({-1}), {},
                                                   at::Reduction::Sum, 0, smoothing);
    EXPECT_NEAR(sums[0], loss.item<double>(), 1e-12);
    EXPECT_EQ(sums[3], 9);
    const bool needs[] = {true, false};
    const at::Tensor ours = head->backward(saved, {.unit = 1.0 / 9}, needs)[0];
    EXPECT_TRUE(at::allclose(ours, torch::autograd::grad({loss}, {leaf})[0].mul(1.0 / 9), 0, 1e-15));
    EXPECT_NEAR(head->values(sums)[2].second, std::exp(sums[1] / 9), 1e-12);
  }
}

TEST(TokenCrossEntropy, SmoothingHasTheGoldenValue) {
  const at::Tensor scores = at::tensor({1.0, 2.0,  3.0, 4.0, .5,  .1,  .2,  .3,  .4,   .5,
                                        2.0, -1.0, 0.0, 1.0, 3.0, 0.0, 0.0, 1.0, -2.0, 2.0},
                                       at::kDouble)
                                .view({4, 5});
  const at::Tensor inputs[] = {scores, at::tensor({3, 0, 4, 1}, at::kLong)};
  for (const auto& [smoothing, expected] : {std::pair{0.1, 3.78628964370345}, {0.0, 3.41628964370345}}) {
    std::vector<double> sums(4, 0.0);
    token_cross_entropy_head({.ignored = 0, .smoothing = smoothing})->forward(inputs, nullptr, sums);
    EXPECT_NEAR(sums[0], expected, 1e-12);
  }
}

TEST(MeanSquaredError, IsTorchs) {
  auto generator = at::detail::createCPUGenerator(std::uint64_t{1});
  const at::Tensor inputs[] = {at::empty({6, 5}, at::kFloat).normal_(0, 1, generator),
                               at::empty({6, 5}, at::kFloat).normal_(0, 1, generator)};
  std::vector<double> sums(2, 0.0);
  mean_squared_error_head()->forward(inputs, nullptr, sums);
  EXPECT_NEAR(sums[0] / sums[1], at::mse_loss(inputs[0], inputs[1]).item<double>(), 1e-6);
  EXPECT_THROW(
      mean_squared_error_head()->check(std::vector<TensorSpec>{{.shape = {2, 3}}, {.shape = {2, 4}}}),
      ConfigError);
}

TEST(BinaryCrossEntropy, IsTorchsForProbabilitiesAndLogits) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    for (const BinaryScores kind : {BinaryScores::Logits, BinaryScores::Probabilities}) {
      auto generator = at::detail::createCPUGenerator(std::uint64_t{6});
      at::Tensor scores = at::empty({40, 1}, dtype).normal_(0, 3, generator);
      if (kind == BinaryScores::Probabilities) {
        scores = at::sigmoid(scores);
        scores[0].fill_(0);  // torch bounds the logarithm
        scores[1].fill_(1);
      }
      const at::Tensor labels = at::empty({40}, at::kLong).random_(0, 2, generator);
      const at::Tensor inputs[] = {scores, labels};
      const HeadPtr head = binary_cross_entropy_head(kind);
      Saved saved;
      std::vector<double> sums(head->num_sums(), 0.0);
      head->forward(inputs, &saved, sums);
      at::Tensor leaf = scores.clone().requires_grad_(true);
      const at::Tensor target = labels.to(dtype).unsqueeze(1);
      const at::Tensor loss = kind == BinaryScores::Logits
                                  ? at::binary_cross_entropy_with_logits(leaf, target)
                                  : at::binary_cross_entropy(leaf, target);
      const NamedValues shown = head->values(sums);
      ASSERT_EQ(shown.size(), 2u) << "training counts no scores";
      EXPECT_NEAR(shown[0].second, loss.item<double>(), 1e-6);
      const bool needs[] = {true, false};
      const at::Tensor grad = head->backward(saved, {.share = 0.5}, needs)[0],
                       expected = torch::autograd::grad({loss}, {leaf})[0].mul(0.5);
      EXPECT_TRUE(at::allclose(grad, expected, 1e-6, 1e-12));
      const at::Tensor on_device = head->forward_on_device(inputs, nullptr);
      std::vector<double> evaluated(head->num_sums(), 0.0);
      head->forward(inputs, nullptr, evaluated);
      EXPECT_TRUE(at::equal(on_device, at::tensor(evaluated, at::kDouble)));
    }
  }
}

/// Labels 0 0 1 1 with scores 0.1 0.4 0.35 0.8: three of four pairs are in order.
TEST(BinaryCrossEntropy, EvaluationsShowTheAreaUnderTheRocCurve) {
  const HeadPtr head = binary_cross_entropy_head(BinaryScores::Probabilities);
  std::vector<double> sums(head->num_sums(), 0.0);
  const at::Tensor scores = at::tensor({0.1, 0.4, 0.35, 0.8}, at::kDouble).unsqueeze(1),
                   labels = at::tensor({0, 0, 1, 1}, at::kLong);
  for (const std::int64_t from : {0, 2}) {  // in two microbatches
    const at::Tensor inputs[] = {scores.narrow(0, from, 2), labels.narrow(0, from, 2)};
    head->forward(inputs, nullptr, sums);
    EXPECT_EQ(head->values(sums).size(), from == 0 ? 2u : 3u) << "no AUC of one label alone";
  }
  const NamedValues shown = head->values(sums);
  EXPECT_EQ(shown[1], (std::pair<std::string, double>{"accuracy", 0.75}));
  EXPECT_EQ(shown[2], (std::pair<std::string, double>{"auc", 0.75}));
}

TEST(PointCrossEntropy, IsTorchsAndCountsParts) {
  auto generator = at::detail::createCPUGenerator(std::uint64_t{4});
  const at::Tensor scores = at::empty({3, 20, 4}, at::kDouble).normal_(0, 1, generator),
                   labels = at::empty({3, 20}, at::kLong).random_(0, 4, generator);
  const HeadPtr head = point_cross_entropy_head(4);
  Saved saved;
  std::vector<double> sums(head->metrics().size() + 1, 0.0);
  const at::Tensor inputs[] = {scores, labels};
  head->forward(inputs, &saved, sums);
  at::Tensor leaf = scores.clone().requires_grad_(true);
  const at::Tensor loss = at::cross_entropy_loss(leaf.reshape({-1, 4}), labels.reshape({-1}));
  const NamedValues shown = head->values(sums);
  EXPECT_NEAR(shown[0].second, loss.item<double>(), 1e-12);
  EXPECT_NEAR(shown[1].second, scores.argmax(2).eq(labels).to(at::kDouble).mean().item<double>(), 1e-12);
  const bool needs[] = {true, false};
  EXPECT_TRUE(at::allclose(head->backward(saved, {.share = 0.5}, needs)[0],
                           torch::autograd::grad({loss}, {leaf})[0].mul(0.5), 0, 1e-15));
  const at::Tensor beyond[] = {scores, at::full({3, 20}, 4, at::kLong)};
  EXPECT_THROW(head->forward(beyond, nullptr, sums), DataError);
}

/// Parts 0 0 1 1 found as 0 1 1 1: of part 0 one of two, of part 1 two of three, part 2 is nowhere.
TEST(PointCrossEntropy, MeanIouIsOfTheCloudsParts) {
  const HeadPtr head = point_cross_entropy_head(3);
  at::Tensor scores = at::zeros({1, 4, 3});
  const std::int64_t found[] = {0, 1, 1, 1};
  for (std::int64_t i = 0; i < 4; ++i) scores[0][i][found[i]] = 1;
  const at::Tensor inputs[] = {scores, at::tensor({0, 0, 1, 1}, at::kLong).view({1, 4})};
  std::vector<double> sums(head->metrics().size() + 1, 0.0);
  head->forward(inputs, nullptr, sums);
  const NamedValues shown = head->values(sums);
  EXPECT_EQ(shown[1], (std::pair<std::string, double>{"accuracy", 0.75}));
  EXPECT_NEAR(shown[2].second, (0.5 + 2.0 / 3 + 1) / 3, 1e-12);
  EXPECT_EQ(shown[3], (std::pair<std::string, double>{"part0", 0.5}));
  EXPECT_EQ(shown[4].second, 1);
  EXPECT_EQ(shown[5].second, 0) << "it has no points";
}

TEST(Orthogonality, HasTheGoldenValuesAndAutogradsGradient) {
  const HeadPtr head = orthogonality_head();
  for (const auto& [size, expected] :
       {std::pair<std::int64_t, double>{64, .66228188568}, {3, .03020512051116}}) {
    const at::Tensor matrix = at::add(at::eye(size, at::kDouble),
                                      at::arange(size * size, at::kDouble).sin().view({size, size}), 0.01)
                                  .unsqueeze(0);
    std::vector<double> sums(2, 0.0);
    Saved saved;
    const at::Tensor inputs[] = {matrix};
    head->forward(inputs, &saved, sums);
    EXPECT_NEAR(sums[0], expected, 1e-11);
    at::Tensor leaf = matrix.clone().requires_grad_(true);
    const at::Tensor loss = at::linalg_matrix_norm(
        at::bmm(leaf, leaf.transpose(1, 2)).sub(at::eye(size, at::kDouble)), "fro", {-2, -1});
    const bool needs[] = {true};
    EXPECT_TRUE(at::allclose(head->backward(saved, {.share = 1}, needs)[0],
                             torch::autograd::grad({loss.mean()}, {leaf})[0], 1e-12, 1e-12));
  }
  const at::Tensor orthogonal[] = {at::eye(3).unsqueeze(0)};
  std::vector<double> sums(2, 0.0);
  Saved saved;
  head->forward(orthogonal, &saved, sums);
  const bool needs[] = {true};
  EXPECT_EQ(head->backward(saved, {.share = 1}, needs)[0].abs().max().item<double>(), 0);
}

/// alpha times the mean square of one tensor and beta times that of the differences of another's steps.
TEST(ActivationPenalty, IsTheFormulaAndItsGradient) {
  const HeadPtr head = activation_penalty_head({.activation = 2, .change = 3});
  auto generator = at::detail::createCPUGenerator(std::uint64_t{1});
  for (const std::int64_t steps : {5, 1}) {
    const at::Tensor inputs[] = {at::empty({steps, 2, 4}, at::kDouble).normal_(0, 1, generator),
                                 at::empty({steps, 2, 4}, at::kDouble).normal_(0, 1, generator)};
    const auto formula = [&](const at::Tensor& read, const at::Tensor& made) {
      const at::Tensor loss = read.square().mean().mul(2);
      return steps == 1 ? loss : loss.add(made.diff(1, 0).square().mean(), 3);
    };
    Saved saved;
    std::vector<double> sums(4, 0.0);
    head->forward(inputs, &saved, sums);
    const std::vector<at::Tensor> leaves{inputs[0].clone().requires_grad_(),
                                         inputs[1].clone().requires_grad_()};
    const at::Tensor loss = formula(leaves[0], leaves[1]);
    const auto expected = torch::autograd::grad({loss}, leaves, {}, {}, false, /*allow_unused=*/true);
    EXPECT_EQ(sums[3], double(steps) * 2);
    EXPECT_NEAR(sums[0] / sums[3], loss.item<double>(), 1e-12);
    EXPECT_NEAR(sums[0], 2 * sums[1] + 3 * sums[2], 1e-12);
    const bool needs[] = {true, true};
    const auto ours = head->backward(saved, {.share = 0.25}, needs);
    EXPECT_TRUE(at::allclose(ours[0], expected[0].mul(0.25), 0, 1e-14));
    EXPECT_TRUE(at::allclose(ours[1], expected[1].defined() ? expected[1].mul(0.25) : at::zeros_like(ours[1]),
                             0, 1e-14));
    // One tensor that is both.
    Saved both;
    head->forward(std::span(inputs).first(1), &both, sums);
    const at::Tensor leaf = inputs[0].clone().requires_grad_();
    const auto of_both = torch::autograd::grad({formula(leaf, leaf)}, {leaf});
    EXPECT_TRUE(
        at::allclose(head->backward(both, {.share = 1}, std::span(needs).first(1))[0], of_both[0], 0, 1e-14));
    // An evaluation leaves this head's sums at 0.
    std::vector<double> evaluated(4, 0.0);
    head->forward(inputs, nullptr, evaluated);
    EXPECT_EQ(evaluated, (std::vector<double>{0, 0, 0, double(steps) * 2}));
  }
}

/// Labels that count up, as uint8 [1, 1, D, H, W].
at::Tensor labels_of(at::IntArrayRef sides, std::int64_t classes) {
  at::Tensor labels = at::empty(sides, at::kByte);
  for (std::int64_t i = 0; i < labels.numel(); ++i)
    labels.mutable_data_ptr<std::uint8_t>()[i] = static_cast<std::uint8_t>(i % classes);
  return labels.view({1, 1, sides[0], sides[1], sides[2]});
}

/// The value is that of MONAI 1.6's DiceCELoss(include_background=False, to_onehot_y=True, softmax=True,
/// smooth_nr=1e-6, smooth_dr=1e-6, lambda_dice=.5, lambda_ce=.5).
TEST(DiceCrossEntropy, IsMonaisLoss) {
  at::Tensor scores = at::empty({1, 3, 4, 4, 4}, at::kDouble);
  for (int c = 0; c < 3; ++c)
    for (int i = 0; i < 64; ++i) scores.mutable_data_ptr<double>()[c * 64 + i] = std::sin(0.1 * (c + 1) * i);
  const at::Tensor inputs[] = {scores, labels_of({4, 4, 4}, 3), at::zeros({1, 8}, at::kLong)};
  std::vector<double> sums(5, 0.0);
  dice_cross_entropy_head(3)->forward(inputs, nullptr, sums);
  EXPECT_NEAR(sums[0], 0.96082415863694, 1e-13);
  EXPECT_EQ(sums[4], 1);
}

/// The loss in plain operations that autograd records.
at::Tensor plain_dice_cross_entropy(const at::Tensor& scores, const at::Tensor& target) {
  const std::int64_t voxels[] = {2, 3, 4};
  const auto summed = [&](const at::Tensor& t) { return t.sum(voxels); };
  const at::Tensor p = scores.softmax(1);
  at::Tensor loss = at::cross_entropy_loss(scores, target.select(1, 0).to(at::kLong)).mul(0.5);
  for (std::int64_t c = 1; c < scores.size(1); ++c) {
    const at::Tensor is = target.eq(c), of = p.narrow(1, c, 1);
    const at::Tensor dice = summed(of.mul(is)).mul(2).add(1e-6).div(summed(of).add(summed(is)).add(1e-6));
    loss = loss.add(dice.mean().neg().add(1).mul(0.5 / double(scores.size(1) - 1)));
  }
  return loss;
}

TEST(DiceCrossEntropy, HasAutogradsGradients) {
  auto generator = at::detail::createCPUGenerator(std::uint64_t{3});
  at::Tensor scores = at::empty({2, 4, 3, 5, 2}, at::kDouble).normal_(0, 2, generator);
  at::Tensor target = at::empty({2, 1, 3, 5, 2}, at::kByte).random_(0, 4, generator);
  target.select(0, 1).clamp_max_(2);  // a class that a sample does not have
  const at::Tensor inputs[] = {scores.clone(), target, at::zeros({2, 8}, at::kLong)};
  Saved saved;
  std::vector<double> sums(6, 0.0);
  const HeadPtr head = dice_cross_entropy_head(4);
  at::Tensor ours;
  {
    at::NoGradGuard no_grad;
    head->forward(inputs, &saved, sums);
    const bool needs[] = {true, false, false};
    ours = head->backward(saved, {.share = 0.5}, needs)[0];
  }
  const at::Tensor loss = plain_dice_cross_entropy(scores.requires_grad_(true), target);
  EXPECT_NEAR(sums[0], 2 * loss.item<double>(), 1e-12);
  const at::Tensor theirs = torch::autograd::grad({loss}, {scores})[0].mul(0.5);
  EXPECT_TRUE(at::allclose(ours, theirs, 1e-10, 1e-14)) << ours.sub(theirs).abs().max();
}

/// Windows of 4 voxels a side, 2 apart, in a volume of 4 x 6 x 8 voxels: six of them.
struct WindowedVolume {
  at::Tensor scores, labels, numbers;  ///< [6, 3, 4, 4, 4], [6, 1, 4, 4, 4], [6, 8]
  at::Tensor whole_scores, whole_labels;
};

WindowedVolume windowed_volume(std::uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  WindowedVolume v{.scores = at::empty({6, 3, 4, 4, 4}, at::kFloat).normal_(0, 1, generator),
                   .labels = at::empty({6, 1, 4, 4, 4}, at::kByte),
                   .numbers = at::empty({6, 8}, at::kLong),
                   .whole_scores = at::zeros({1, 3, 4, 6, 8}, at::kFloat),
                   .whole_labels = at::empty({1, 1, 4, 6, 8}, at::kByte).random_(0, 3, generator)};
  const at::Tensor weights = at::zeros({4, 6, 8}, at::kDouble), sum = at::zeros({3, 4, 6, 8}, at::kDouble);
  for (std::int64_t n = 0; n < 6; ++n) {
    const std::int64_t y = n / 3 * 2, x = n % 3 * 2;
    const std::int64_t numbers[] = {6, n, 0, y, x, 4, 6, 8};
    std::copy_n(numbers, 8, v.numbers.mutable_data_ptr<std::int64_t>() + 8 * n);
    v.labels[n][0].copy_(v.whole_labels[0][0].narrow(1, y, 4).narrow(2, x, 4));
    for (std::int64_t i = 0; i < 64; ++i) {
      const std::int64_t a = i / 16, b = i / 4 % 4, c = i % 4;
      const double r2 = (double(a) - 1.5) * (double(a) - 1.5) + (double(b) - 1.5) * (double(b) - 1.5) +
                        (double(c) - 1.5) * (double(c) - 1.5);
      const double weight = std::exp(-(r2 - 0.75) / (6 * 0.25));
      weights[a][y + b][x + c].add_(weight);
      for (std::int64_t k = 0; k < 3; ++k)
        sum[k][a][y + b][x + c].add_(weight * v.scores[n][k][a][b][c].item<double>());
    }
  }
  v.whole_scores.copy_(sum.div(weights).unsqueeze(0));
  return v;
}

TEST(DiceCrossEntropy, JudgesTheWindowsOfAVolumeAsOneSample) {
  const HeadPtr head = dice_cross_entropy_head(3);
  const std::unique_ptr<Collector> collector = head->collector();
  std::vector<double> expected(5, 0.0), sums(5, 0.0);
  for (const std::uint64_t seed : {1, 2}) {
    const WindowedVolume v = windowed_volume(seed);
    const at::Tensor whole[] = {v.whole_scores, v.whole_labels, at::zeros({1, 8}, at::kLong)};
    head->forward(whole, nullptr, expected);
    for (const auto& [from, count] : {std::pair{0, 4}, {4, 2}}) {  // microbatches of four, and what is left
      EXPECT_EQ(sums[4], double(seed - 1)) << "before the last window a volume does not count";
      const at::Tensor part[] = {v.scores.narrow(0, from, count), v.labels.narrow(0, from, count),
                                 v.numbers.narrow(0, from, count)};
      collector->add(part, sums);
    }
  }
  EXPECT_EQ(sums[4], 2);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(sums[i], expected[i], 2e-6) << head->metrics()[i];
  // A plane in front and a row behind that the volume was padded with count in nothing.
  WindowedVolume padded = windowed_volume(4);
  padded.labels.narrow(2, 0, 1).fill_(kOutsideVolume);
  padded.labels.narrow(0, 3, 3).narrow(3, 3, 1).fill_(kOutsideVolume);
  const at::Tensor windows[] = {padded.scores, padded.labels, padded.numbers},
                   real[] = {padded.whole_scores.narrow(2, 1, 3).narrow(3, 0, 5),
                             padded.whole_labels.narrow(2, 1, 3).narrow(3, 0, 5).contiguous(),
                             at::zeros({1, 8}, at::kLong)};
  std::vector<double> of_windows(5, 0.0), of_real(5, 0.0);
  collector->add(windows, of_windows);
  head->forward(real, nullptr, of_real);
  EXPECT_EQ(of_windows[4], 1);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(of_windows[i], of_real[i], 2e-6) << head->metrics()[i];
  // A sample that is no window counts by itself.
  const at::Tensor alone[] = {windowed_volume(3).whole_scores, windowed_volume(3).whole_labels,
                              at::zeros({1, 8}, at::kLong)};
  std::vector<double> direct(5, 0.0), collected(5, 0.0);
  head->forward(alone, nullptr, direct);
  collector->add(alone, collected);
  EXPECT_EQ(collected, direct);
}

TEST(DiceCrossEntropy, RefusesWindowsOutOfOrderAndLabelsWithoutAClass) {
  const HeadPtr head = dice_cross_entropy_head(3);
  const WindowedVolume v = windowed_volume(1);
  std::vector<double> sums(5, 0.0);
  const auto add = [&](Collector& to, std::int64_t n) {
    const at::Tensor one[] = {v.scores.narrow(0, n, 1), v.labels.narrow(0, n, 1), v.numbers.narrow(0, n, 1)};
    to.add(one, sums);
  };
  const std::unique_ptr<Collector> skips = head->collector();
  add(*skips, 0);
  EXPECT_THROW(add(*skips, 2), DataError);
  EXPECT_THROW(add(*head->collector(), 1), DataError);
  add(*skips, 0);  // an evaluation that was interrupted begins again
  add(*skips, 1);
  v.numbers[2][4].add_(8);  // beyond the volume
  EXPECT_THROW(add(*skips, 2), DataError);
  const at::Tensor wrong[] = {v.whole_scores, v.whole_labels.clone().fill_(3), at::zeros({1, 8}, at::kLong)};
  EXPECT_THROW(head->forward(wrong, nullptr, sums), DataError);
}

}  // namespace
}  // namespace millrace
