// Smoothed and mixed targets: sums and gradients are torch's.
#include <gtest/gtest.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
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

TEST(SoftTargets, WithoutSmoothingAreThePlainHead) {
  EXPECT_EQ(smoothed_cross_entropy_head(0)->kind(), cross_entropy_head()->kind());
  EXPECT_TRUE(smoothed_cross_entropy_head(0.1)->like(*smoothed_cross_entropy_head(0.1)));
  EXPECT_FALSE(smoothed_cross_entropy_head(0.1)->like(*smoothed_cross_entropy_head(0.2)));
  EXPECT_EQ(with_mixed_targets(*mean_squared_error_head()), nullptr);
}

}  // namespace
}  // namespace millrace
