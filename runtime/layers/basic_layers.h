// The layers of the image models. Each is one function returning an immutable layer; parameter names and
// shapes are PyTorch's. Shapes: B microbatch, C channels, H W height and width, F features.
#pragma once

#include "runtime/layers/layer.h"

namespace millrace {

/// Distribution of initial weights.
enum class WeightInit {
  PyTorch,        ///< uniform in +-1/sqrt(fan_in), weight and bias (nn.Linear, nn.Conv2d)
  KaimingFanOut,  ///< normal, sqrt(2 / fan_out); bias zero (torchvision's VGG and ResNet convolutions)
  Normal01,       ///< normal, 0.01; bias zero (VGG's classifier)
};

LayerPtr linear(std::int64_t in, std::int64_t out,
                WeightInit init = WeightInit::PyTorch);  ///< [B, ..., in] -> [B, ..., out]

struct ConvOptions {
  std::int64_t in = 1, out = 1;
  std::int64_t kernel = 3, stride = 1, padding = 0;
  bool bias = true;
  WeightInit init = WeightInit::PyTorch;
};
LayerPtr conv2d(const ConvOptions& options);  ///< [B, in, H, W] -> [B, out, H', W']

LayerPtr batch_norm2d(std::int64_t channels);  ///< statistics of the microbatch; momentum 0.1, eps 1e-5
LayerPtr relu();
LayerPtr gelu();  ///< exact (erf)
LayerPtr max_pool2d(std::int64_t kernel, std::int64_t stride, std::int64_t padding = 0);
LayerPtr adaptive_avg_pool2d(std::int64_t height, std::int64_t width);
LayerPtr dropout(double p);  ///< mask from CallContext::random_seed alone
LayerPtr flatten();          ///< [B, ...] -> [B, F]
LayerPtr add();              ///< two inputs of one shape

}  // namespace millrace
