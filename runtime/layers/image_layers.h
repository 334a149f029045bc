// Further layers of the image models. Shapes: B is the microbatch size, C channels, H W height and width.
#pragma once

#include "runtime/layers/layer.h"

namespace millrace {

struct AvgPoolOptions {
  std::int64_t kernel = 2, stride = 2, padding = 0;
  bool count_padding = true;  ///< a window's mean includes the zeros of the padding (torch's default)
};
LayerPtr avg_pool2d(const AvgPoolOptions& options);  ///< [B, C, H, W] -> [B, C, H', W']

LayerPtr concat();  ///< [B, C1, ...], [B, C2, ...], ... -> [B, C1 + C2 + ..., ...]

/// Multiplies [B, C, H, W] by one factor per channel [B, C, 1, 1] (squeeze and excitation, arXiv 1709.01507).
LayerPtr scale_channels();

/// Computes max(x, 0) + weight min(x, 0) for x [B, C, ...]. The parameter weight [parameters] has one element
/// for all channels or one per channel (torch.nn.PReLU, arXiv 1502.01852).
LayerPtr prelu(std::int64_t parameters = 1, double initial = 0.25);

struct GroupNormOptions {
  double epsilon = 1e-5;
  bool affine = true;  ///< parameters weight and bias [C]
};
/// Normalises [B, C, ...] over the elements of each sample's `groups` groups of channels (torch.nn.GroupNorm,
/// arXiv 1803.08494). `groups` divides the channels.
LayerPtr group_norm(std::int64_t groups, std::int64_t channels, const GroupNormOptions& options = {});
/// Normalises each channel of a sample separately, as torch.nn.InstanceNorm does (arXiv 1607.08022). By
/// default it has no parameters; it never has running statistics.
LayerPtr instance_norm(std::int64_t channels, const GroupNormOptions& options = {.affine = false});

LayerPtr relu6();         ///< min(max(x, 0), 6)
LayerPtr hard_sigmoid();  ///< relu6(x + 3) / 6 (MobileNetV3, arXiv 1905.02244)
LayerPtr hard_swish();    ///< x relu6(x + 3) / 6

}  // namespace millrace
