// The loss as the CPU takes it and as a device takes it.
#include "runtime/stage/loss.h"

#include <gtest/gtest.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "runtime/base/error.h"

namespace millrace {
namespace {

TEST(Loss, SumsOfADeviceEqualTheCpus) {
  for (int classes : {2, 4, 100}) {
    auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(classes));
    at::Tensor logits = at::empty({64, classes}, at::kFloat).normal_(0, 1, generator);
    logits.narrow(0, 0, 32).round_();  // ties, which count for the lower class
    const at::Tensor target = at::empty({64}, at::kLong).random_(0, classes, generator);
    SavedLoss saved, saved_on_device;
    const LossResult expected = cross_entropy(logits, target, &saved);
    const at::Tensor sums = cross_entropy_sums(logits, target, &saved_on_device);
    ASSERT_EQ(sums.scalar_type(), at::kDouble);
    const double* s = sums.const_data_ptr<double>();
    EXPECT_EQ(s[0], expected.loss);
    EXPECT_EQ(s[1], expected.loss * 64);
    EXPECT_EQ(s[2], 64);
    EXPECT_EQ(s[3], double(expected.top1));
    EXPECT_EQ(s[4], double(expected.top5));
    EXPECT_TRUE(at::equal(cross_entropy_backward(saved, 0.5), cross_entropy_backward(saved_on_device, 0.5)));
  }
}

TEST(Loss, ATargetOutsideTheClassesIsNamed) {
  EXPECT_NO_THROW(check_targets(at::full({2}, 3, at::kLong), 4));
  EXPECT_THROW(check_targets(at::full({2}, 4, at::kLong), 4), DataError);
  EXPECT_THROW(check_targets(at::full({2}, -1, at::kLong), 4), DataError);
  EXPECT_THROW(cross_entropy(at::zeros({2, 4}), at::full({2}, 4, at::kLong), nullptr), DataError);
}

}  // namespace
}  // namespace millrace
