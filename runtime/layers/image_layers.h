// Further layers of the image models. Shapes: B microbatch, C channels, H W height and width.
#pragma once

#include "runtime/layers/layer.h"

namespace millrace {

struct AvgPoolOptions {
  std::int64_t kernel = 2, stride = 2, padding = 0;
  bool count_padding = true;  ///< a window's mean is over the zeros of the padding too (torch's default)
};
LayerPtr avg_pool2d(const AvgPoolOptions& options);  ///< [B, C, H, W] -> [B, C, H', W']

LayerPtr concat();  ///< [B, C1, ...], [B, C2, ...], ... -> [B, C1 + C2 + ..., ...]

/// [B, C, H, W] times a factor for each channel [B, C, 1, 1] (squeeze and excitation, arXiv 1709.01507).
LayerPtr scale_channels();

LayerPtr relu6();         ///< min(max(x, 0), 6)
LayerPtr hard_sigmoid();  ///< relu6(x + 3) / 6 (MobileNetV3, arXiv 1905.02244)
LayerPtr hard_swish();    ///< x times that

}  // namespace millrace
