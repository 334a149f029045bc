// Transposed convolution, which generators and decoders use to enlarge images and volumes.
#pragma once

#include "runtime/layers/basic_layers.h"

namespace millrace {

struct ConvTransposeOptions {
  std::int64_t in = 1, out = 1;
  std::int64_t kernel = 3, stride = 1, padding = 0;
  std::int64_t output_padding = 0;  ///< additional rows, columns and planes of the output; below `stride`
  bool bias = true;
  std::int64_t groups = 1;  ///< divides `in` and `out`
  WeightInit init = WeightInit::PyTorch;
  double deviation = 0;       ///< standard deviation of WeightInit::Normal
  std::int64_t dilation = 1;  ///< distance in pixels between kernel elements
};
/// [B, in, H, W] -> [B, out, H', W'], H' = (H - 1) stride - 2 padding + dilation (kernel - 1) + 1 +
/// output_padding. Parameters weight [in, out / groups, kernel, kernel] and bias [out], as in
/// torch.nn.ConvTranspose2d.
LayerPtr conv_transpose2d(const ConvTransposeOptions& options);
/// For volumes: [B, in, D, H, W] -> [B, out, D', H', W']. The weight has three kernel dimensions.
LayerPtr conv_transpose3d(const ConvTransposeOptions& options);

}  // namespace millrace
