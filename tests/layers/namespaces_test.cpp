// A program that opens the namespaces of LibTorch and of millrace can use the functions of both.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "runtime/layers/basic_layers.h"

TEST(Namespaces, MayBothBeOpen) {
  using namespace torch;
  using namespace millrace;
  const Tensor x = tensor({-1.0, 2.0});
  EXPECT_TRUE(equal(relu(x), tensor({0.0, 2.0})));
  EXPECT_TRUE(equal(add(x, x), 2 * x));
  EXPECT_EQ(flatten(x.repeat({2, 1})).dim(), 1);
  for (const LayerPtr& layer : {relu(), add(), flatten()}) EXPECT_TRUE(layer);
}
