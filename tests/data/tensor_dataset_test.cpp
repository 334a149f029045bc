// Tensors in memory as a data set.
#include "data/loading/tensor_dataset.h"

#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

namespace millrace {
namespace {

std::vector<FieldSpec> fields() {
  return {{.name = "tokens", .shape = {dimension(0)}, .dtype = at::kLong, .limit = 50},
          {.name = "scores", .shape = {2}},
          {.name = "label", .shape = {}, .dtype = at::kLong, .limit = 4}};
}

TEST(TensorDataset, GivesTheRowsOfTheTensors) {
  const at::Tensor tokens = at::arange(12, at::kInt).reshape({3, 4}),
                   scores = at::arange(6, at::kDouble).reshape({3, 2}), labels = at::arange(3, at::kLong);
  const auto data = make_tensor_dataset(fields(), {tokens, scores, labels}, {.description = "mine"});
  ASSERT_TRUE(data) << to_string(data.problems());
  EXPECT_EQ((*data)->size(), 3);
  EXPECT_EQ((*data)->describe(), "mine, 3 samples");
  const std::vector<char> wanted{1, 1, 1}, no_tokens{0, 1, 1};
  const Sample sample = (*data)->get(1, 0, wanted);
  EXPECT_TRUE(at::equal(sample[0].tensor, at::arange(4, 8, at::kLong)));
  EXPECT_TRUE(at::equal(sample[1].tensor, at::arange(2, 4, at::kFloat)));
  EXPECT_EQ(sample[2].tensor.item<std::int64_t>(), 1);
  EXPECT_FALSE((*data)->get(1, 0, no_tokens)[0].tensor.defined());
  std::vector<std::int64_t> lengths{0}, counts;
  (*data)->measure(2, lengths, counts);
  EXPECT_EQ(lengths[0], 4);
  // Sets of equal values have equal fingerprints.
  EXPECT_EQ((*data)->fingerprint(),
            (*make_tensor_dataset(fields(), {tokens, scores, labels}))->fingerprint());
  EXPECT_NE((*data)->fingerprint(),
            (*make_tensor_dataset(fields(), {at::zeros_like(tokens), scores, labels}))->fingerprint());
}

TEST(TensorDataset, SaysEverythingThatDoesNotFit) {
  const auto wrong = make_tensor_dataset(
      fields(), {at::full({3, 4}, 50, at::kLong), at::zeros({4, 2}), at::zeros({3}, at::kFloat)});
  ASSERT_FALSE(wrong);
  const std::string all = to_string(wrong.problems());
  for (const char* part :
       {"tokens: has values from 50 to 50, the model takes 0 to 49",
        "scores: is [4, 2], the model reads [N, 2]", "label: is of type Float, the model reads integers"})
    EXPECT_NE(all.find(part), std::string::npos) << part << "\n" << all;
  EXPECT_FALSE(make_tensor_dataset(fields(), {at::zeros({3, 4}, at::kLong)}));
  EXPECT_FALSE(make_tensor_dataset(fields(), {at::Tensor(), at::zeros({3, 2}), at::zeros({3}, at::kLong)}));
  EXPECT_FALSE(make_tensor_dataset({{.name = "x", .shape = {2}}}, {at::zeros({0, 2})})) << "no samples";
}

}  // namespace
}  // namespace millrace
