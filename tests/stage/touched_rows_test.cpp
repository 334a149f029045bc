// Updates that touch only the rows of a table that were read: the same bits as updates of all rows.
#include <gtest/gtest.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>

#include "runtime/layers/basic_layers.h"
#include "runtime/layers/sequence_layers.h"
#include "runtime/plan/plan.h"
#include "runtime/stage/parameter_store.h"
#include "runtime/stage/update_rule.h"

namespace millrace {
namespace {

constexpr std::int64_t kRows = 50, kWidth = 6;

/// A table and a linear layer behind it.
class TouchedRows : public ::testing::Test {
 protected:
  TouchedRows() : layout_(layout()), store_(layout_, StageId(0), 7), dense_(layout_, StageId(0), 7) {}

  static StageLayout layout() {
    LayeredModel model = classifier("table", {}, kWidth);
    model.fields[0] = {.name = "input", .dtype = at::kLong, .limit = kRows};
    model.layers.push_back({"table", embedding({.vocabulary = kRows, .features = kWidth}), {"input"}});
    model.layers.push_back({"linear", linear(kWidth, kWidth), {"table"}});
    end_in_cross_entropy(model);
    const Plan plan = uniform_plan(model.name, model.layer_names(), 1, 1, 1, ScheduleKind::GPipe);
    return *make_layout(model, plan, 4);
  }
  /// Adds ones to the gradients of some rows, and to those of the linear layer.
  static void add(ParameterStore& store, const at::Tensor& rows) {
    store.gradients(0)[0].index_add_(0, rows, at::ones({rows.size(0), kWidth}));
    for (at::Tensor& gradient : store.gradients(1)) gradient.add_(1);
    store.touch(0, rows);
    store.touch(1, {});
  }
  static std::int64_t elements(const std::vector<FlatRange>& ranges) {
    std::int64_t sum = 0;
    for (const FlatRange range : ranges) sum += range.size();
    return sum;
  }

  StageLayout layout_;
  ParameterStore store_, dense_;
};

TEST_F(TouchedRows, AreTheRowsThatWereReadAndAllOtherParameters) {
  const std::int64_t all = store_.flat_gradient().numel();
  EXPECT_EQ(store_.touched(), (std::vector<FlatRange>{{0, all}})) << "nobody told of rows";
  add(store_, at::tensor({7, 3, 7}, at::kLong));
  add(store_, at::tensor({8}, at::kLong));
  const std::vector<FlatRange> touched = store_.touched();
  ASSERT_EQ(touched.size(), 3u);
  EXPECT_EQ(touched[0], (FlatRange{3 * kWidth, 4 * kWidth}));
  EXPECT_EQ(touched[1], (FlatRange{7 * kWidth, 9 * kWidth})) << "rows side by side are one range";
  EXPECT_EQ(touched[2], (FlatRange{store_.slots()[1].offset, all}));
  store_.touch_all({});
  EXPECT_EQ(elements(store_.touched()), all);
}

TEST_F(TouchedRows, UpdatesHaveTheBitsOfUpdatesOfAllRows) {
  const RuleOptions options{.kind = UpdateRuleKind::Sgd, .momentum = 0, .weight_decay = 0};
  const auto sparse = make_update_rule(options, store_), dense = make_update_rule(options, dense_);
  for (int step = 0; step < 3; ++step) {
    for (const at::Tensor& rows : {at::tensor({7, 3 + step, 7}, at::kLong), at::tensor({49, 0}, at::kLong)}) {
      add(store_, rows);
      add(dense_, rows);
    }
    const UpdateScalars scalars{.lr = 0.3, .gradient_factor = 0.7};
    const std::vector<FlatRange> touched = store_.touched();
    EXPECT_LT(elements(touched), store_.flat_gradient().numel() / 2);
    store_.publish(
        [&](const at::Tensor& weights, const at::Tensor& gradient) {
          UpdateRule::apply_all_(
              std::vector<UpdateRule::Update>{{sparse.get(), weights, gradient, scalars, 0, &touched}});
        },
        &touched);
    dense_.publish([&](const at::Tensor& weights, const at::Tensor& gradient) {
      dense->apply_(weights, gradient, scalars);
    });
    EXPECT_TRUE(at::equal(store_.flat_weights(), dense_.flat_weights())) << step;
    EXPECT_EQ(store_.flat_gradient().abs().max().item<float>(), 0) << "all gradients are zero again";
  }
}

TEST_F(TouchedRows, OnlyPlainDescentLeavesRowsOut) {
  const auto touches = [&](RuleOptions options) {
    return make_update_rule(options, store_)->updates_touched(store_.flat_weights());
  };
  EXPECT_FALSE(touches({.kind = UpdateRuleKind::Sgd, .momentum = 0.9, .weight_decay = 0}));
  EXPECT_FALSE(touches({.kind = UpdateRuleKind::Sgd, .momentum = 0, .weight_decay = 1e-4}));
  EXPECT_FALSE(touches({.kind = UpdateRuleKind::Adam, .weight_decay = 0}));
  EXPECT_FALSE(touches({.kind = UpdateRuleKind::Asgd, .weight_decay = 0}));
}

}  // namespace
}  // namespace millrace
