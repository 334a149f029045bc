// Smoothed and mixed targets: sums and gradients are torch's.
#include <gtest/gtest.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <torch/csrc/autograd/autograd.h>

#include "runtime/base/error.h"
#include "runtime/layers/soft_cross_entropy.h"

namespace millrace {
namespace {

struct SoftCase {
  double smoothing;
  bool mixed;
};

class SoftCrossEntropy : public ::testing::TestWithParam<SoftCase> {
 protected:
  static constexpr std::int64_t kRows = 12, kClasses = 7;
  SoftCrossEntropy() {
    auto generator = at::detail::createCPUGenerator(3);
    scores_ = at::empty({kRows, kClasses}, at::kFloat).normal_(0, 2, generator);
    target_ = at::empty({kRows}, at::kLong).random_(0, kClasses, generator);
    partner_ = at::empty({kRows}, at::kLong).random_(0, kClasses, generator);
    partner_.narrow(0, 0, 2).copy_(target_.narrow(0, 0, 2));  // the same class twice
    share_ = at::empty({kRows}, at::kFloat).uniform_(0, 1, generator);
    share_.narrow(0, 2, 2).fill_(1);
    const HeadPtr plain = smoothed_cross_entropy_head(GetParam().smoothing);
    head_ = GetParam().mixed ? with_mixed_targets(*plain) : plain;
  }
  std::vector<at::Tensor> inputs() const {
    if (!GetParam().mixed) return {scores_, target_};
    return {scores_, target_, partner_, share_};
  }
  at::Tensor scores_, target_, partner_, share_;
  HeadPtr head_;
};

TEST_P(SoftCrossEntropy, LossAndGradientAreTorchs) {
  Saved saved, on_device;
  std::vector<double> sums(4, 0.0);
  head_->forward(inputs(), &saved, sums);
  at::Tensor leaf = scores_.clone().set_requires_grad(true), wanted = target_;
  if (GetParam().mixed) {
    wanted = at::zeros({kRows, kClasses}, at::kFloat);
    wanted.scatter_add_(1, target_.unsqueeze(1), share_.unsqueeze(1));
    wanted.scatter_add_(1, partner_.unsqueeze(1), share_.neg().add(1).unsqueeze(1));
  }
  const at::Tensor loss =
      at::cross_entropy_loss(leaf, wanted, {}, at::Reduction::Mean, -100, GetParam().smoothing);
  const at::Tensor expected = torch::autograd::grad({loss}, {leaf})[0];
  EXPECT_NEAR(sums[0] / kRows, loss.item<double>(), 1e-6);
  EXPECT_EQ(sums[3], kRows);
  const std::vector<char> wants(inputs().size(), 1);
  const bool needs[] = {true, false, false, false};
  const auto grads = head_->backward(saved, {.share = 0.5}, std::span(needs).first(inputs().size()));
  EXPECT_EQ(grads.size(), inputs().size());
  EXPECT_TRUE(at::allclose(grads[0], expected.mul(0.5), 1e-5, 1e-8));
  const at::Tensor of_device = head_->forward_on_device(inputs(), &on_device);
  for (int i = 0; i < 4; ++i)
    EXPECT_NEAR(of_device[i].item<double>(), sums[static_cast<std::size_t>(i)], 1e-9);
  EXPECT_TRUE(at::equal(head_->backward(on_device, {.share = 0.5}, needs)[0], grads[0]));
}

TEST_P(SoftCrossEntropy, RefusesWhatDoesNotFit) {
  const TensorSpec scores{{4, 3}, at::kFloat}, targets{{4}, at::kLong}, shares{{4}, at::kFloat};
  const std::vector<TensorSpec> two{scores, targets}, four{scores, targets, targets, shares};
  EXPECT_NO_THROW(head_->check(GetParam().mixed ? four : two));
  EXPECT_THROW(head_->check(GetParam().mixed ? two : four), ConfigError);
  target_[1].fill_(kClasses);
  std::vector<double> sums(4, 0.0);
  EXPECT_THROW(head_->forward(inputs(), nullptr, sums), DataError);
}

INSTANTIATE_TEST_SUITE_P(Targets, SoftCrossEntropy,
                         ::testing::Values(SoftCase{0.1, false}, SoftCase{0, true}, SoftCase{0.1, true}),
                         [](const auto& info) {
                           return std::string(info.param.mixed ? "mixed" : "whole") +
                                  (info.param.smoothing > 0 ? "_smoothed" : "");
                         });

/// Weights of classes: `smoothing`, and whether the scores are float64.
class WeightedCrossEntropy : public ::testing::TestWithParam<std::pair<double, at::ScalarType>> {
 protected:
  static constexpr std::int64_t kRows = 12, kClasses = 7;
  static inline const std::vector<double> kWeights{0.1, 3, 1, 0, 0.7, 12.5, 1e-3};
  WeightedCrossEntropy() {
    auto generator = at::detail::createCPUGenerator(5);
    scores_ = at::empty({kRows, kClasses}, at::kFloat).normal_(0, 2, generator).to(GetParam().second);
    target_ = at::empty({kRows}, at::kLong).random_(0, kClasses, generator);
    head_ = with_class_weights(*smoothed_cross_entropy_head(GetParam().first), units_of_weights(kWeights));
  }
  /// The loss of torch for some rows.
  at::Tensor torchs(const at::Tensor& scores, const at::Tensor& target) const {
    const at::Tensor weight = at::tensor(kWeights).to(at::kFloat).to(scores.scalar_type());
    return at::cross_entropy_loss(scores, target, weight, at::Reduction::Mean, -100, GetParam().first);
  }
  std::vector<double> sums_of(const at::Tensor& scores, const at::Tensor& target, Saved* saved) const {
    std::vector<double> sums(head_->num_sums(), 0.0);
    head_->forward(std::vector{scores, target}, saved, sums);
    return sums;
  }
  at::Tensor scores_, target_;
  HeadPtr head_;
};

TEST_P(WeightedCrossEntropy, LossAndGradientAreTorchs) {
  const bool in_double = GetParam().second == at::kDouble;
  at::Tensor leaf = scores_.clone().set_requires_grad(true);
  const at::Tensor loss = torchs(leaf, target_), expected = torch::autograd::grad({loss}, {leaf})[0];
  Saved saved, on_device;
  const std::vector<double> sums = sums_of(scores_, target_, &saved);
  const NamedValues values = head_->values(sums);
  EXPECT_NEAR(values[0].second, loss.item<double>(), in_double ? 1e-12 : 2e-6);
  EXPECT_EQ(values[1].second, scores_.argmax(1).eq(target_).to(at::kDouble).mean().item<double>());
  EXPECT_EQ(sums[3], kRows);
  const bool needs[] = {true, false};
  const LossScale scale{.share = 0, .unit = 1 / sums.back()};
  const at::Tensor grad = head_->backward(saved, scale, needs)[0];
  EXPECT_TRUE(at::allclose(grad, expected, 1e-5, in_double ? 1e-14 : 1e-8)) << grad << expected;
  const at::Tensor of_device = head_->forward_on_device(std::vector{scores_, target_}, &on_device);
  for (int i = 0; i < 5; ++i)
    EXPECT_NEAR(of_device[i].item<double>(), sums[static_cast<std::size_t>(i)],
                1e-12 * sums[static_cast<std::size_t>(i)]);
  EXPECT_TRUE(at::equal(head_->backward(on_device, scale, needs)[0], grad));
}

/// The microbatches of a step: their sums and gradients are those of torch for the whole batch.
TEST_P(WeightedCrossEntropy, MicrobatchesAddUpToTheBatch) {
  at::Tensor leaf = scores_.clone().set_requires_grad(true);
  const at::Tensor loss = torchs(leaf, target_), expected = torch::autograd::grad({loss}, {leaf})[0];
  std::vector<double> all(head_->num_sums(), 0.0);
  std::vector<Saved> saved(3);
  for (std::int64_t m = 0; m < 3; ++m) {
    head_->forward(std::vector{scores_.narrow(0, 4 * m, 4), target_.narrow(0, 4 * m, 4)}, &saved[m], all);
  }
  EXPECT_NEAR(head_->values(all)[0].second, loss.item<double>(), 2e-6);
  EXPECT_EQ(all.back(), sums_of(scores_, target_, nullptr).back());
  const bool needs[] = {true, false};
  for (std::int64_t m = 0; m < 3; ++m) {
    const at::Tensor grad = head_->backward(saved[m], {.share = 0, .unit = 1 / all.back()}, needs)[0];
    EXPECT_TRUE(at::allclose(grad, expected.narrow(0, 4 * m, 4), 1e-5, 1e-8)) << m;
  }
}

INSTANTIATE_TEST_SUITE_P(Weights, WeightedCrossEntropy,
                         ::testing::Values(std::pair(0.0, at::kFloat), std::pair(0.1, at::kFloat),
                                           std::pair(0.0, at::kDouble), std::pair(0.3, at::kDouble)));

/// Ignored targets, of which a microbatch may have no others: sums and gradients are torch's for the batch.
TEST(IgnoredLabels, MicrobatchesAddUpToTheBatch) {
  auto generator = at::detail::createCPUGenerator(7);
  const at::Tensor scores = at::empty({12, 5}, at::kFloat).normal_(0, 2, generator);
  at::Tensor target = at::empty({12}, at::kLong).random_(0, 5, generator);
  target.narrow(0, 0, 4).fill_(-1);
  target.narrow(0, 6, 3).fill_(-1);
  const std::vector<double> weights{1, 3, 0.5, 2, 0.25};
  for (const double smoothing : {0.0, 0.1}) {
    for (const bool weighted : {false, true}) {
      HeadPtr head = ignoring_labels(smoothed_cross_entropy_head(smoothing), -1);
      if (weighted)
        head = with_class_weights(*head, units_of_weights(weights));
      else
        head = dynamic_cast<const WeighsLabels&>(*head).counting_labels();
      at::Tensor leaf = scores.clone().set_requires_grad(true);
      const at::Tensor weight = at::tensor(weights).to(at::kFloat),
                       loss = at::cross_entropy_loss(leaf, target, weighted ? weight : at::Tensor(),
                                                     at::Reduction::Mean, -1, smoothing),
                       expected = torch::autograd::grad({loss}, {leaf})[0];
      const auto& weighs = dynamic_cast<const WeighsLabels&>(*head);
      const std::int64_t* labels = target.const_data_ptr<std::int64_t>();
      std::vector<std::int64_t> counts(3);
      for (std::int64_t i = 0; i < 12; ++i) counts[i / 4] += weighs.weight_of({labels + i, 1}, {});
      const auto all = static_cast<double>(counts[0] + counts[1] + counts[2]);
      std::vector<double> sums(head->num_sums(), 0.0);
      for (std::int64_t m = 0; m < 3; ++m) {
        Saved saved, on_device;
        const std::vector<at::Tensor> inputs{scores.narrow(0, 4 * m, 4), target.narrow(0, 4 * m, 4)};
        std::vector<double> own(head->num_sums(), 0.0);
        head->forward(inputs, &saved, own);
        const at::Tensor of_device = head->forward_on_device(inputs, &on_device);
        for (std::size_t i = 0; i < own.size(); ++i) {
          EXPECT_NEAR(of_device[static_cast<std::int64_t>(i)].item<double>(), own[i],
                      1e-6 * std::abs(own[i]));
          sums[i] += own[i];
        }
        EXPECT_EQ(own.back(), double(counts[m]));
        const bool needs[] = {true, false};
        const LossScale scale{.share = double(counts[m]) / all, .unit = 1 / all};
        const at::Tensor grad = head->backward(saved, scale, needs)[0];
        EXPECT_TRUE(at::allclose(grad, expected.narrow(0, 4 * m, 4), 1e-5, 1e-8)) << grad << expected;
        EXPECT_TRUE(at::equal(head->backward(on_device, scale, needs)[0], grad));
      }
      EXPECT_NEAR(head->values(sums)[0].second, loss.item<double>(), 2e-6);
      EXPECT_EQ(sums[3], weighted ? 5 : all) << "samples that count";
    }
  }
  // Where every target counts, the bits are those of the head inside.
  target.clamp_min_(0);
  std::vector<double> plain(4, 0.0), ignoring(4, 0.0);
  Saved a, b;
  const bool needs[] = {true, false};
  cross_entropy_head()->forward(std::vector{scores, target}, &a, plain);
  const HeadPtr head = ignoring_labels(cross_entropy_head(), -1);
  head->forward(std::vector{scores, target}, &b, ignoring);
  EXPECT_EQ(plain, ignoring);
  EXPECT_TRUE(at::equal(head->backward(b, {}, needs)[0], cross_entropy_head()->backward(a, {}, needs)[0]));
}

TEST(ClassWeights, AreWholeNumbersInTheRatiosOfFloat32) {
  const std::vector<double> weights{0.1, 3, 0, 1e-4};
  const std::vector<std::int64_t> units = units_of_weights(weights);
  EXPECT_LT(units[1], std::int64_t{1} << 40);
  for (const std::size_t c : {0, 2, 3})
    EXPECT_EQ(double(units[c]) / double(units[1]), double(float(weights[c])) / 3.0) << c;
  EXPECT_EQ(with_class_weights(*mean_squared_error_head(), {1}), nullptr);
  EXPECT_EQ(with_class_weights(*with_mixed_targets(*cross_entropy_head()), {1}), nullptr);
  const HeadPtr head = with_class_weights(*cross_entropy_head(), {1, 2});
  EXPECT_TRUE(head->like(*with_class_weights(*cross_entropy_head(), {1, 2})));
  EXPECT_FALSE(head->like(*with_class_weights(*cross_entropy_head(), {1, 3})));
  const std::vector<TensorSpec> three{{{4, 3}, at::kFloat}, {{4}, at::kLong}};
  EXPECT_THROW(head->check(three), ConfigError);
  std::vector<double> sums(5, 0.0);
  EXPECT_THROW(head->forward(std::vector{at::zeros({1, 2}), at::full({1}, 2, at::kLong)}, nullptr, sums),
               DataError);
  EXPECT_EQ(head->values(std::vector<double>(5, 0.0))[0].second, 0.0);  // nothing was judged
}

TEST(SoftTargets, WithoutSmoothingAreThePlainHead) {
  EXPECT_EQ(smoothed_cross_entropy_head(0)->kind(), cross_entropy_head()->kind());
  EXPECT_TRUE(smoothed_cross_entropy_head(0.1)->like(*smoothed_cross_entropy_head(0.1)));
  EXPECT_FALSE(smoothed_cross_entropy_head(0.1)->like(*smoothed_cross_entropy_head(0.2)));
  EXPECT_EQ(with_mixed_targets(*mean_squared_error_head()), nullptr);
}

}  // namespace
}  // namespace millrace
