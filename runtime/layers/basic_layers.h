// The layers of most models. Each function returns an immutable layer. Parameter names and shapes are
// PyTorch's. Shapes: B is the microbatch size, C channels, H W height and width, F features. image_layers.h
// has further image layers.
#pragma once

#include "runtime/layers/layer.h"

namespace millrace {

/// Distribution of initial weights.
enum class WeightInit {
  PyTorch,         ///< uniform in +-1/sqrt(fan_in), weight and bias (nn.Linear, nn.Conv2d)
  KaimingFanOut,   ///< normal, sqrt(2 / fan_out); bias zero (torchvision's VGG and ResNet convolutions)
  Normal01,        ///< normal, 0.01; bias zero (VGG's classifier)
  KaimingFanIn,    ///< normal, sqrt(2 / fan_in); bias zero (torchvision's DenseNet)
  KaimingUniform,  ///< uniform in +-sqrt(6 / fan_in); bias zero (torchvision's SqueezeNet)
  ZeroBias,        ///< the weight as in PyTorch, bias zero (DenseNet's classifier)
  Normal,          ///< normal, with the caller's standard deviation; bias as in PyTorch (Inception)
};

/// [B, ..., in] -> [B, ..., out]. `deviation` is for WeightInit::Normal.
LayerPtr linear(std::int64_t in, std::int64_t out, WeightInit init = WeightInit::PyTorch,
                double deviation = 0);

/// One number for both height and width, or one for each.
struct Extent2 {
  std::int64_t height, width;
  Extent2(std::int64_t both) : height(both), width(both) {}  // NOLINT
  Extent2(std::int64_t h, std::int64_t w) : height(h), width(w) {}
};

/// The values that a convolution reads beyond the edges: zeros, the image mirrored without its edge, the edge
/// repeated, or the opposite side (torch's padding_mode).
enum class PaddingMode { Zeros, Reflect, Replicate, Circular };

struct ConvOptions {
  std::int64_t in = 1, out = 1;
  Extent2 kernel = 3;
  std::int64_t stride = 1;
  Extent2 padding = 0;
  bool bias = true;
  WeightInit init = WeightInit::PyTorch;
  std::int64_t groups = 1;    ///< divides `in` and `out`; equal to `in`: depthwise convolution
  double deviation = 0;       ///< for WeightInit::Normal
  std::int64_t dilation = 1;  ///< distance in pixels between kernel elements
  PaddingMode padding_mode = PaddingMode::Zeros;
};
/// Initial values that the caller chooses.
struct InitialValues {
  Init weight = Init::Zeros;
  double weight_a = 0;
  Init bias = Init::Zeros;
  double bias_a = 0;
};
LayerPtr linear(std::int64_t in, std::int64_t out, const InitialValues& initial);
/// Returns a linear layer whose `weight` and `bias` have other parameter names, for state_dicts that use
/// them.
LayerPtr linear(std::int64_t in, std::int64_t out, const InitialValues& initial, std::string weight,
                std::string bias);

LayerPtr conv2d(const ConvOptions& options);  ///< [B, in, H, W] -> [B, out, H', W']
/// [B, in, L] -> [B, out, L']. It uses only the widths of `kernel` and `padding`. The weight is [out, in /
/// groups, width].
LayerPtr conv1d(const ConvOptions& options);
/// [B, in, D, H, W] -> [B, out, D', H', W']. Height and width of `kernel` and of `padding` must be equal, and
/// also apply to the depth.
LayerPtr conv3d(const ConvOptions& options);

struct BatchNormOptions {
  double momentum = 0.1;  ///< weight of the new microbatch in the running statistics
  double epsilon = 1e-5;
  double weight_deviation = 0;  ///< standard deviation of the initial weights, normal around 1; 0: all are 1
};
/// Batch normalisation of [B, C, H, W] with the microbatch's statistics.
LayerPtr batch_norm2d(std::int64_t channels, const BatchNormOptions& options = {});
/// Batch normalisation over the rows of [B, ..., C]: channels are the last dimension.
LayerPtr batch_norm1d(std::int64_t channels, const BatchNormOptions& options = {});
LayerPtr relu();
/// The form of GELU: with erf, or with its approximation by tanh (BERT's original).
enum class GeluForm { Erf, Tanh };
LayerPtr gelu(GeluForm form = GeluForm::Erf);
LayerPtr tanh_layer();
LayerPtr sigmoid_layer();
/// Whether a last window that does not fit completely is dropped or kept (torch's ceil_mode).
enum class LastWindow { LeftOut, Kept };
LayerPtr max_pool2d(std::int64_t kernel, std::int64_t stride, std::int64_t padding = 0,
                    LastWindow last = LastWindow::LeftOut);
/// Returns the index of each value that max_pool2d selects for the same input and arguments: int64 [B, C, H',
/// W'], within the plane [H, W] (torch's return_indices). It is a separate layer next to the pooling, and no
/// gradient flows through it.
LayerPtr max_pool2d_indices(std::int64_t kernel, std::int64_t stride, std::int64_t padding = 0,
                            LastWindow last = LastWindow::LeftOut);
/// Values [B, C, H', W'], indices from max_pool2d_indices -> [B, C, height, width]: each value at its index,
/// zeros elsewhere. If several values have the same index, the last one is kept.
LayerPtr max_unpool2d(std::int64_t height, std::int64_t width);
LayerPtr adaptive_avg_pool2d(std::int64_t height, std::int64_t width);
LayerPtr dropout(double p);    ///< the mask depends on CallContext::random_seed alone
LayerPtr dropout2d(double p);  ///< [B, C, ...]; drops whole channels of a sample (torch's Dropout2d)
LayerPtr flatten();            ///< [B, ...] -> [B, F]
LayerPtr add();                ///< two inputs of equal shape

}  // namespace millrace
