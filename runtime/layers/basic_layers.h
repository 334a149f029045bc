// The layers of most models. Each is one function that returns an immutable layer. Parameter names and shapes
// are PyTorch's. Shapes: B is the microbatch, C channels, H W height and width, F features. Further image
// layers are in image_layers.h.
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
  ZeroBias,        ///< the weight as PyTorch, bias zero (DenseNet's classifier)
  Normal,          ///< normal, with the caller's standard deviation; bias as PyTorch (Inception)
};

/// [B, ..., in] -> [B, ..., out]. `deviation` is that of WeightInit::Normal.
LayerPtr linear(std::int64_t in, std::int64_t out, WeightInit init = WeightInit::PyTorch,
                double deviation = 0);

/// One number for height and width, or one for each.
struct Extent2 {
  std::int64_t height, width;
  Extent2(std::int64_t both) : height(both), width(both) {}  // NOLINT
  Extent2(std::int64_t h, std::int64_t w) : height(h), width(w) {}
};

/// The values that a convolution reads beyond the edges: zeros, the image mirrored without its edge, the edge
/// again, or the other side (torch's padding_mode).
enum class PaddingMode { Zeros, Reflect, Replicate, Circular };

struct ConvOptions {
  std::int64_t in = 1, out = 1;
  Extent2 kernel = 3;
  std::int64_t stride = 1;
  Extent2 padding = 0;
  bool bias = true;
  WeightInit init = WeightInit::PyTorch;
  std::int64_t groups = 1;    ///< divides `in` and `out`; equal to `in`: depthwise convolution
  double deviation = 0;       ///< of WeightInit::Normal
  std::int64_t dilation = 1;  ///< pixels from one element of the kernel to the next
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
/// Returns a linear layer whose parameters `weight` and `bias` have other names, for state_dicts that name
/// them so.
LayerPtr linear(std::int64_t in, std::int64_t out, const InitialValues& initial, std::string weight,
                std::string bias);

LayerPtr conv2d(const ConvOptions& options);  ///< [B, in, H, W] -> [B, out, H', W']
/// [B, in, L] -> [B, out, L']. It reads only the widths of `kernel` and `padding`. The weight is [out, in /
/// groups, width].
LayerPtr conv1d(const ConvOptions& options);
/// [B, in, D, H, W] -> [B, out, D', H', W']. Height and width of `kernel` and of `padding` are equal, and
/// stand for the depth too.
LayerPtr conv3d(const ConvOptions& options);

struct BatchNormOptions {
  double momentum = 0.1;  ///< weight of the new microbatch in the running statistics
  double epsilon = 1e-5;
  double weight_deviation = 0;  ///< standard deviation of the initial weights, normal around 1; 0: they are 1
};
/// Batch normalisation of [B, C, H, W] with the statistics of the microbatch.
LayerPtr batch_norm2d(std::int64_t channels, const BatchNormOptions& options = {});
/// Batch normalisation over the rows of [B, ..., C]: channels are the last dimension.
LayerPtr batch_norm1d(std::int64_t channels, const BatchNormOptions& options = {});
LayerPtr relu();
/// The form of GELU: with erf, or with its approximation by tanh (BERT's original).
enum class GeluForm { Erf, Tanh };
LayerPtr gelu(GeluForm form = GeluForm::Erf);
LayerPtr tanh_layer();
LayerPtr sigmoid_layer();
/// A last window that does not fit whole is left out or kept (torch's ceil_mode).
enum class LastWindow { LeftOut, Kept };
LayerPtr max_pool2d(std::int64_t kernel, std::int64_t stride, std::int64_t padding = 0,
                    LastWindow last = LastWindow::LeftOut);
/// Returns the place of each value that max_pool2d takes for the same input and arguments: int64 [B, C, H',
/// W'], counted in the plane [H, W] (torch's return_indices). It is a layer beside the pooling, and no
/// gradient flows through it.
LayerPtr max_pool2d_indices(std::int64_t kernel, std::int64_t stride, std::int64_t padding = 0,
                            LastWindow last = LastWindow::LeftOut);
/// Values [B, C, H', W'], indices as max_pool2d_indices gives them -> [B, C, height, width]: each value at
/// its place, zeros elsewhere. If several values have one place, the last one stays.
LayerPtr max_unpool2d(std::int64_t height, std::int64_t width);
LayerPtr adaptive_avg_pool2d(std::int64_t height, std::int64_t width);
LayerPtr dropout(double p);    ///< the mask depends on CallContext::random_seed alone
LayerPtr dropout2d(double p);  ///< [B, C, ...] with whole channels of a sample dropped (torch's Dropout2d)
LayerPtr flatten();            ///< [B, ...] -> [B, F]
LayerPtr add();                ///< two inputs of one shape

}  // namespace millrace
