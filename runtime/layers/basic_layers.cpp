#include "runtime/layers/basic_layers.h"

#include <array>
#include <cmath>

#include <ATen/Context.h>
#include <ATen/ops/_adaptive_avg_pool2d.h>
#include <ATen/ops/_adaptive_avg_pool2d_backward.h>
#include <ATen/ops/add.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>
#include <ATen/ops/max_unpool2d.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/threshold_backward.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/kernels/gelu_kernels.h"
#include "runtime/kernels/linear_kernels.h"
#include "runtime/layers/convolution.h"
#include "runtime/layers/dropout_mask.h"
#include "runtime/layers/job_kernels.h"
#include "runtime/layers/left_out.h"
#include "runtime/layers/shape_errors.h"
#include "runtime/layers/transposed_convolution.h"

namespace millrace {
namespace {

/// Returns the specs of a weight with this fan_in and fan_out, and of the bias.
std::vector<ParameterSpec> weight_and_bias(Shape weight, std::int64_t fan_in, std::int64_t fan_out,
                                           std::int64_t out, bool bias, WeightInit init, double deviation) {
  const double bound = 1 / std::sqrt(double(fan_in));
  ParameterSpec w{.name = "weight", .shape = std::move(weight)},
      b{.name = "bias", .shape = {out}, .kind = ParameterKind::Bias};
  switch (init) {
    case WeightInit::PyTorch:
      w.init = b.init = Init::Uniform;
      w.a = b.a = bound;
      break;
    case WeightInit::KaimingFanOut:
      w.init = Init::Normal;
      w.a = std::sqrt(2.0 / double(fan_out));
      break;
    case WeightInit::Normal01:
      w.init = Init::Normal;
      w.a = 0.01;
      break;
    case WeightInit::KaimingFanIn:
      w.init = Init::Normal;
      w.a = std::sqrt(2.0 / double(fan_in));
      break;
    case WeightInit::KaimingUniform:
      w.init = Init::Uniform;
      w.a = std::sqrt(6.0 / double(fan_in));
      break;
    case WeightInit::ZeroBias:
      w.init = Init::Uniform;
      w.a = bound;
      break;
    case WeightInit::Normal:
      w.init = Init::Normal;
      w.a = deviation;
      b.init = Init::Uniform;
      b.a = bound;
      break;
  }
  if (bias) return {w, b};
  return {w};
}

class Linear final : public Layer {
 public:
  Linear(std::int64_t in, std::int64_t out, std::vector<ParameterSpec> specs)
      : in_(in), out_(out), specs_(std::move(specs)) {}
  std::string kind() const override { return "linear"; }
  CastPolicy cast_policy() const override { return CastPolicy::Lower; }
  bool like(const Layer& other) const override {
    const auto& o = static_cast<const Linear&>(other);
    return in_ == o.in_ && out_ == o.out_;
  }
  LayerPtr over_jobs(std::int64_t) const override { return linear_over_jobs(); }
  std::vector<ParameterSpec> parameters() const override { return specs_; }
  Shape output_shape(std::span<const Shape> inputs) const override {
    if (inputs[0].size() < 2 || inputs[0].back() != in_)
      throw_bad_shape("linear", inputs[0], "[B, ..., " + std::to_string(in_) + "]");
    Shape shape = inputs[0];
    shape.back() = out_;
    return shape;
  }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> p, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    if (saved) saved->tensors = {inputs[0]};
    const at::Tensor copy = p.size() > 2 ? p[2] : at::Tensor();
    if (inputs[0].dim() == 2) return linear_forward(inputs[0], p[0], p[1], copy);
    return restored(linear_forward(rows(inputs[0]), p[0], p[1], copy), inputs[0]);
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor> p, Saved&,
                                         std::span<const bool> needs) const override {
    if (!needs[0]) return {at::Tensor()};
    if (grad.dim() == 2) return {linear_input_gradient(grad, p[0])};
    return {restored(linear_input_gradient(rows(grad), p[0]), grad)};
  }
  void backward_weight(const at::Tensor& grad, Saved& saved, std::span<at::Tensor> grads) const override {
    add_linear_gradients_(rows(saved.tensors[0]), rows(grad), grads[0], grads[1]);
  }
  std::vector<at::Tensor> copies(const Shape& input, std::span<const at::Tensor> p) const override {
    std::int64_t samples = 1;
    for (std::size_t i = 0; i + 1 < input.size(); ++i) samples *= input[i];
    if (p[0].scalar_type() != at::kFloat || !p[0].device().is_cpu()) return {};
    if (!linear_kernels(samples, in_, out_).copy) return {};
    return {transposed_copy(p[0])};
  }

 private:
  /// rows() returns [..., F] as [N, F]; restored() is the inverse, with another last dimension.
  static at::Tensor rows(const at::Tensor& x) { return x.dim() == 2 ? x : x.reshape({-1, x.size(-1)}); }
  static at::Tensor restored(const at::Tensor& x, const at::Tensor& like) {
    Shape shape = like.sizes().vec();
    shape.back() = x.size(1);
    return x.view(shape);
  }

  std::int64_t in_, out_;
  std::vector<ParameterSpec> specs_;
};

/// The base of convolutions of one to three dimensions. Subclasses define parameters and shapes.
class Convolution : public Layer {
 public:
  CastPolicy cast_policy() const override { return CastPolicy::Lower; }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> p, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    const at::Tensor x = call_.padded(inputs[0]);
    if (saved) saved->tensors = {x, p[0]};
    return call_.forward(x, p[0], call_.bias ? p[1] : at::Tensor(), groups_);
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor> p, Saved& saved,
                                         std::span<const bool> needs) const override {
    if (!needs[0]) return {at::Tensor()};
    return {call_.unpadded(
        std::get<0>(call_.gradients(grad, saved.tensors[0], p[0], groups_, {true, false, false})))};
  }
  void backward_weight(const at::Tensor& grad, Saved& saved, std::span<at::Tensor> grads) const override {
    auto [input, weight, bias] =
        call_.gradients(grad, saved.tensors[0], saved.tensors[1], groups_, {false, true, call_.bias});
    grads[0].add_(weight);
    if (call_.bias) grads[1].add_(bias);
  }

 protected:
  template <typename Options>
  explicit Convolution(const Options& o) : call_(o), groups_(o.groups) {
    MILLRACE_CHECK(o.groups > 0 && o.in % o.groups == 0 && o.out % o.groups == 0,
                   o.in << " and " << o.out << " channels in " << o.groups << " groups");
  }

 private:
  ConvolutionCall call_;
  std::int64_t groups_;
};

/// Returns the input shape of a convolution, for messages: "[B, 3, H, W]".
std::string places_of(std::int64_t channels, std::size_t dimensions) {
  static constexpr const char* kPlaces[] = {", L]", ", H, W]", ", D, H, W]"};
  return "[B, " + std::to_string(channels) + kPlaces[dimensions - 1];
}

/// The layer of conv1d, conv2d and conv3d.
class PlainConvolution final : public Convolution {
 public:
  PlainConvolution(const ConvOptions& options, std::size_t dimensions)
      : Convolution(options), o_(options), dimensions_(dimensions) {
    MILLRACE_CHECK(
        dimensions < 3 || (o_.kernel.height == o_.kernel.width && o_.padding.height == o_.padding.width),
        "conv3d has one size of kernel and padding for all dimensions");
  }
  std::string kind() const override { return "conv" + std::to_string(dimensions_) + "d"; }
  bool like(const Layer& other) const override {
    const auto& that = static_cast<const PlainConvolution&>(other);
    const ConvOptions& o = that.o_;
    return dimensions_ == that.dimensions_ && o_.in == o.in && o_.out == o.out && same(o_.kernel, o.kernel) &&
           o_.stride == o.stride && same(o_.padding, o.padding) && o_.bias == o.bias &&
           o_.groups == o.groups && o_.dilation == o.dilation && o_.padding_mode == o.padding_mode;
  }
  LayerPtr over_jobs(std::int64_t) const override { return conv_over_jobs(o_); }
  std::vector<ParameterSpec> parameters() const override {
    // The fans are those of torch.nn.init, computed from the weight's own shape, so fan_out ignores groups.
    Shape shape{o_.out, o_.in / o_.groups};
    std::int64_t area = 1;
    for (const std::int64_t size : by_dimension(o_.kernel)) {
      shape.push_back(size);
      area *= size;
    }
    return weight_and_bias(shape, shape[1] * area, o_.out * area, o_.out, o_.bias, o_.init, o_.deviation);
  }
  Shape output_shape(std::span<const Shape> inputs) const override {
    const Shape& x = inputs[0];
    if (x.size() != dimensions_ + 2 || x[1] != o_.in)
      throw_bad_shape(kind(), x, places_of(o_.in, dimensions_));
    const Shape kernel = by_dimension(o_.kernel), padding = by_dimension(o_.padding);
    Shape shape{x[0], o_.out};
    for (std::size_t d = 0; d < dimensions_; ++d) {
      const std::int64_t size = x[d + 2], extent = o_.dilation * (kernel[d] - 1) + 1;
      // Padding needs enough pixels: the whole image once around (circular), or all pixels but the edge
      // (reflect).
      const std::int64_t most = o_.padding_mode == PaddingMode::Circular  ? size
                                : o_.padding_mode == PaddingMode::Reflect ? size - 1
                                                                          : padding[d];
      if (size < 1 || padding[d] > most || size + 2 * padding[d] < extent)
        throw_bad_shape(kind(), x,
                        "at least " + text_of(extents()) +
                            " pixels with padding, and more than what is read "
                            "beyond an edge");
      shape.push_back((size + 2 * padding[d] - extent) / o_.stride + 1);
    }
    return shape;
  }

 private:
  static bool same(const Extent2& a, const Extent2& b) { return a.height == b.height && a.width == b.width; }
  Shape by_dimension(const Extent2& of) const {
    Shape numbers(dimensions_, of.height);
    numbers.back() = of.width;
    return numbers;
  }
  /// Returns the sizes of the dilated kernel, in pixels.
  Shape extents() const {
    Shape all = by_dimension(o_.kernel);
    for (std::int64_t& size : all) size = o_.dilation * (size - 1) + 1;
    return all;
  }
  ConvOptions o_;
  std::size_t dimensions_;
};

/// The layer of conv_transpose2d and conv_transpose3d.
class ConvTranspose final : public Convolution {
 public:
  ConvTranspose(const ConvTransposeOptions& options, std::size_t dimensions)
      : Convolution(options), o_(options), dimensions_(dimensions) {
    MILLRACE_CHECK(o_.output_padding >= 0 && o_.output_padding < o_.stride,
                   "output padding " << o_.output_padding << " of stride " << o_.stride);
  }
  std::string kind() const override { return "conv_transpose" + std::to_string(dimensions_) + "d"; }
  bool like(const Layer& other) const override {
    const auto& that = static_cast<const ConvTranspose&>(other);
    const ConvTransposeOptions& o = that.o_;
    return dimensions_ == that.dimensions_ && o_.in == o.in && o_.out == o.out && o_.kernel == o.kernel &&
           o_.stride == o.stride && o_.padding == o.padding && o_.output_padding == o.output_padding &&
           o_.bias == o.bias && o_.groups == o.groups && o_.dilation == o.dilation;
  }
  LayerPtr over_jobs(std::int64_t) const override { return conv_transpose_over_jobs(o_); }
  std::vector<ParameterSpec> parameters() const override {
    // torch.nn.init uses the second dimension as the input dimension, for this weight too.
    Shape shape{o_.in, o_.out / o_.groups};
    std::int64_t area = 1;
    for (std::size_t d = 0; d < dimensions_; ++d) {
      shape.push_back(o_.kernel);
      area *= o_.kernel;
    }
    return weight_and_bias(shape, shape[1] * area, o_.in * area, o_.out, o_.bias, o_.init, o_.deviation);
  }
  Shape output_shape(std::span<const Shape> inputs) const override {
    const Shape& x = inputs[0];
    if (x.size() != dimensions_ + 2 || x[1] != o_.in)
      throw_bad_shape(kind(), x, places_of(o_.in, dimensions_));
    Shape shape{x[0], o_.out};
    for (std::size_t d = 2; d < x.size(); ++d) {
      shape.push_back((x[d] - 1) * o_.stride - 2 * o_.padding + o_.dilation * (o_.kernel - 1) + 1 +
                      o_.output_padding);
      if (shape.back() < 1) throw_bad_shape(kind(), x, "an image that padding leaves some of");
    }
    return shape;
  }

 private:
  ConvTransposeOptions o_;
  std::size_t dimensions_;
};

/// The channel dimension in batch normalisation: [B, C, H, W] or [B, ..., C].
enum class Channels { Second, Last };

class BatchNorm final : public Layer {
 public:
  BatchNorm(std::int64_t channels, Channels place, const BatchNormOptions& options)
      : channels_(channels), last_(place == Channels::Last), o_(options) {}
  std::string kind() const override { return last_ ? "batch_norm1d" : "batch_norm2d"; }
  CastPolicy cast_policy() const override { return CastPolicy::Promote; }
  bool like(const Layer& other) const override {
    const auto& o = static_cast<const BatchNorm&>(other);
    return channels_ == o.channels_ && last_ == o.last_ && o_.momentum == o.o_.momentum &&
           o_.epsilon == o.o_.epsilon;
  }
  LayerPtr over_jobs(std::int64_t) const override { return batch_norm_over_jobs(o_, last_); }
  std::vector<ParameterSpec> parameters() const override {
    const bool drawn = o_.weight_deviation > 0;
    return {{.name = "weight",
             .shape = {channels_},
             .init = drawn ? Init::Normal : Init::Ones,
             .a = o_.weight_deviation,
             .kind = ParameterKind::Norm,
             .mean = 1},
            {.name = "bias", .shape = {channels_}, .kind = ParameterKind::Norm},
            {.name = "running_mean", .shape = {channels_}, .is_buffer = true},
            {.name = "running_var", .shape = {channels_}, .init = Init::Ones, .is_buffer = true},
            {.name = "num_batches_tracked", .shape = {}, .is_buffer = true, .is_counter = true}};
  }
  Shape output_shape(std::span<const Shape> inputs) const override {
    const Shape& x = inputs[0];
    if (last_ && (x.size() < 2 || x.back() != channels_))
      throw_bad_shape("batch_norm1d", x, "[B, ..., " + std::to_string(channels_) + "]");
    if (!last_ && (x.size() != 4 || x[1] != channels_))
      throw_bad_shape("batch_norm2d", x, "[B, " + std::to_string(channels_) + ", H, W]");
    return x;
  }
  std::string training_problem(std::span<const Shape> inputs) const override {
    return problem_of_statistics(inputs[0], channels_);
  }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> p,
                     std::span<at::Tensor> buffers, const CallContext& context, Saved* saved) const override {
    const at::Tensor x = as_kernel_takes(inputs[0]);
    if (context.training && context.replicas)
      return forward_together(x, p, buffers, *context.replicas, saved).reshape(inputs[0].sizes());
    if (context.training) require_statistics(x.sizes(), channels_);
    auto [output, mean, inverse] = at::native_batch_norm(x, p[0], p[1], buffers[0], buffers[1],
                                                         context.training, o_.momentum, o_.epsilon);
    if (context.training) buffers[2].add_(1);
    if (saved) saved->tensors = {x, std::move(mean), std::move(inverse)};
    return last_ ? output.view(inputs[0].sizes()) : output;
  }
  /// Returns the input's gradient. One kernel computes all three gradients; those of the parameters are kept
  /// in `saved`.
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor> p, Saved& saved,
                                         std::span<const bool> needs) const override {
    const at::Tensor given = as_kernel_takes(grad);
    const auto restored = [&](const at::Tensor& x) {
      return last_ && x.defined() ? x.view(grad.sizes()) : x;
    };
    if (saved.replicas) return {restored(backward_together(given, p, saved, needs[0]))};
    auto [input, weight, bias] =
        at::native_batch_norm_backward(given, saved.tensors[0], p[0], {}, {}, saved.tensors[1],
                                       saved.tensors[2], true, o_.epsilon, {needs[0], true, true});
    saved.tensors = {std::move(weight), std::move(bias)};
    return {restored(input)};
  }
  void backward_weight(const at::Tensor&, Saved& saved, std::span<at::Tensor> grads) const override {
    grads[0].add_(saved.tensors[0]);
    grads[1].add_(saved.tensors[1]);
  }

 private:
  /// Returns x in the kernel's layout: [R, C] if the channels are last.
  at::Tensor as_kernel_takes(const at::Tensor& x) const { return last_ ? x.reshape({-1, channels_}) : x; }
  c10::IntArrayRef over_batch() const {
    static constexpr std::int64_t kDimensions[] = {0, 2, 3};
    return {kDimensions, last_ ? std::size_t{1} : std::size_t{3}};
  }
  at::Tensor by_channel(const at::Tensor& values) const {
    return last_ ? values.unsqueeze(0) : values.view({1, -1, 1, 1});
  }

  /// Runs a forward with mean and variance over the microbatches of all replicas. Replicas sum count, sum and
  /// sum of squares in double, where cancellation does not matter for float32 inputs. Saved: input, mean, 1 /
  /// deviation, count.
  at::Tensor forward_together(const at::Tensor& x, std::span<const at::Tensor> p,
                              std::span<at::Tensor> buffers, ReplicaSum& replicas, Saved* saved) const {
    const at::Tensor exact = x.to(at::kDouble);
    const at::Tensor sums =
        at::cat({exact.sum(over_batch()), exact.square().sum(over_batch()),
                 at::full({1}, double(x.numel() / channels_), exact.options())});  // [2 C + 1]
    replicas.add_up_(sums, "sums of batch normalisation");
    const at::Tensor count = sums.narrow(0, 2 * channels_, 1), mean = sums.narrow(0, 0, channels_).div(count),
                     variance =
                         sums.narrow(0, channels_, channels_).div(count).sub(mean.square()).clamp_min(0);
    const at::Tensor inverse = variance.add(o_.epsilon).rsqrt();
    buffers[0].mul_(1 - o_.momentum).add_(mean, o_.momentum);
    buffers[1].mul_(1 - o_.momentum).add_(variance.mul(count).div(count.sub(1).clamp_min(1)), o_.momentum);
    buffers[2].add_(1);
    const auto dtype = p[0].scalar_type();
    if (saved) {
      saved->tensors = {x, mean.to(dtype), inverse.to(dtype), count};
      saved->replicas = &replicas;
    }
    const at::Tensor scale = p[0].mul(inverse.to(dtype));
    return x.to(dtype)
        .sub(by_channel(mean.to(dtype)))
        .mul_(by_channel(scale))
        .add_(by_channel(p[1]))
        .to(x.scalar_type());
  }

  /// Computes d/dx = w / deviation x (g - mean(g) - xhat mean(g xhat)), with means over all replicas. The
  /// gradients of weight and bias are this replica's part; a later reduction adds those of the others.
  at::Tensor backward_together(const at::Tensor& given, std::span<const at::Tensor> p, Saved& saved,
                               bool needs_input) const {
    const auto dtype = p[0].scalar_type();
    const at::Tensor grad = given.to(dtype);
    const at::Tensor normal =
        saved.tensors[0].to(dtype).sub(by_channel(saved.tensors[1])).mul_(by_channel(saved.tensors[2]));
    const at::Tensor weight = grad.mul(normal).sum(over_batch(), false, at::kDouble),
                     bias = grad.sum(over_batch(), false, at::kDouble);
    at::Tensor input;
    if (needs_input) {
      const at::Tensor sums = at::cat({weight, bias});
      saved.replicas->add_up_(sums, "gradient sums of batch normalisation");
      sums.div_(saved.tensors[3]);
      const at::Tensor along = sums.narrow(0, 0, channels_).to(dtype),
                       mean = sums.narrow(0, channels_, channels_).to(dtype);
      input = grad.sub(by_channel(mean)).sub_(normal.mul(by_channel(along)));
      input = input.mul_(by_channel(p[0].mul(saved.tensors[2]))).to(given.scalar_type());
    }
    saved.tensors = {weight.to(dtype), bias.to(dtype)};
    return input;
  }

  std::int64_t channels_;
  bool last_;
  BatchNormOptions o_;
};

/// The base of layers without parameters whose output has the input's shape.
class Elementwise : public Layer {
 public:
  CastPolicy cast_policy() const override { return CastPolicy::Promote; }
  bool folds() const override { return true; }
  Shape output_shape(std::span<const Shape> inputs) const override { return inputs[0]; }
};

class Relu final : public Elementwise {
 public:
  std::string kind() const override { return "relu"; }
  bool like(const Layer&) const override { return true; }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    at::Tensor output = at::relu(inputs[0]);
    if (saved) saved->tensors = {output};  // the next layer keeps the same tensor: no extra memory
    return output;
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved& saved,
                                         std::span<const bool>) const override {
    return {at::threshold_backward(grad, saved.tensors[0], 0)};
  }
};

class Gelu final : public Elementwise {
 public:
  explicit Gelu(GeluForm form) : form_(form == GeluForm::Erf ? "none" : "tanh") {}
  std::string kind() const override { return "gelu"; }
  bool like(const Layer& other) const override { return form_ == static_cast<const Gelu&>(other).form_; }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    const at::Tensor& x = inputs[0];
    if (is_own(x)) return own_forward(x, saved);
    if (saved) saved->tensors = {x};
    if (!small(x)) return at::gelu(x, form_);
    return strided(at::gelu(interleaved(x), form_), x.sizes(), x.strides());
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved& saved,
                                         std::span<const bool>) const override {
    if (!saved.numbers.empty()) return {own_backward(grad, saved.tensors[0])};
    const at::Tensor& x = saved.tensors[0];
    if (!small(x) || grad.strides() != x.strides()) return {at::gelu_backward(grad, x, form_)};
    return {strided(at::gelu_backward(interleaved(grad), interleaved(x), form_), x.sizes(), x.strides())};
  }

 private:
  // Smaller tensors avoid oneDNN, which ATen calls for contiguous CPU tensors. oneDNN spends 4 us (forward)
  // and 10 us (backward) on its descriptors before it computes. ATen's own vector kernel takes 1 us for 512
  // elements, and is slower from about this size on. ATen uses it for tensors that are dense but not
  // contiguous.
  static constexpr std::int64_t kOneDnnElements = 1 << 15;
  static bool small(const at::Tensor& x) {
    return x.numel() < kOneDnnElements && x.numel() % 2 == 0 && x.device().is_cpu() && x.is_contiguous();
  }
  /// Returns whether gelu_with_derivative() is used. For a backward, the layer then saves the derivative
  /// instead of x.
  bool is_own(const at::Tensor& x) const {
    return form_ == "none" && small(x) && x.scalar_type() == at::kFloat && x.numel() % kGeluElements == 0 &&
           x.numel() <= kMostGeluElements && !c10::GradMode::is_enabled() && has_gelu_kernel();
  }
  static at::Tensor own_forward(const at::Tensor& x, Saved* saved) {
    at::Tensor y = at::empty(x.sizes(), x.options()), derivative;
    if (saved) derivative = at::empty(x.sizes(), x.options());
    gelu_with_derivative(x.const_data_ptr<float>(), y.mutable_data_ptr<float>(),
                         saved ? derivative.mutable_data_ptr<float>() : nullptr, x.numel());
    if (saved) {
      saved->tensors = {std::move(derivative)};
      saved->numbers = {1};
    }
    return y;
  }
  static at::Tensor own_backward(const at::Tensor& grad, const at::Tensor& derivative) {
    if (!grad.is_contiguous() || grad.scalar_type() != at::kFloat) return at::mul(grad, derivative);
    at::Tensor result = at::empty(grad.sizes(), grad.options());
    const float *g = grad.const_data_ptr<float>(), *d = derivative.const_data_ptr<float>();
    float* to = result.mutable_data_ptr<float>();
    for (std::int64_t i = 0, count = grad.numel(); i < count; ++i) to[i] = g[i] * d[i];
    return result;
  }
  /// Returns a view of the same elements at the same addresses: [2, N/2] transposed.
  static at::Tensor interleaved(const at::Tensor& x) {
    const std::array<std::int64_t, 2> sizes{x.numel() / 2, 2}, strides{1, x.numel() / 2};
    return strided(x, sizes, strides);
  }
  /// Does the same as at::as_strided, whose dispatch takes half a microsecond. at::as_strided is used only if
  /// autograd records.
  static at::Tensor strided(const at::Tensor& x, at::IntArrayRef sizes, at::IntArrayRef strides) {
    if (c10::GradMode::is_enabled()) return at::as_strided(x, sizes, strides, x.storage_offset());
    at::Tensor view =
        at::detail::make_tensor<c10::TensorImpl>(c10::Storage(x.storage()), x.key_set(), x.dtype());
    view.unsafeGetTensorImpl()->set_storage_offset(x.storage_offset());
    view.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
    return view;
  }

  c10::string_view form_;  ///< refers to a literal
};

class Tanh final : public Elementwise {
 public:
  std::string kind() const override { return "tanh"; }
  bool like(const Layer&) const override { return true; }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    at::Tensor output = at::tanh(inputs[0]);
    if (saved) saved->tensors = {output};
    return output;
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved& saved,
                                         std::span<const bool>) const override {
    return {at::tanh_backward(grad, saved.tensors[0])};
  }
};

class Sigmoid final : public Elementwise {
 public:
  std::string kind() const override { return "sigmoid"; }
  bool like(const Layer&) const override { return true; }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    at::Tensor output = at::sigmoid(inputs[0]);
    if (saved) saved->tensors = {output};
    return output;
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved& saved,
                                         std::span<const bool>) const override {
    return {at::sigmoid_backward(grad, saved.tensors[0])};
  }
};

/// The unit that is dropped.
enum class Dropped { Elements, Channels };

class Dropout final : public Elementwise, public MayBeLeftOut {
 public:
  Dropout(double p, Dropped dropped) : p_(p), channels_(dropped == Dropped::Channels) {}
  std::string kind() const override { return channels_ ? "dropout2d" : "dropout"; }
  Shape output_shape(std::span<const Shape> inputs) const override {
    if (channels_ && inputs[0].size() < 3) throw_bad_shape("dropout2d", inputs[0], "[B, C, ...]");
    return inputs[0];
  }
  bool like(const Layer& other) const override {
    const auto& o = static_cast<const Dropout&>(other);
    return p_ == o.p_ && channels_ == o.channels_;
  }
  bool draws() const override { return p_ > 0; }
  LayerPtr left_out() const override {
    return std::make_shared<Dropout>(0, channels_ ? Dropped::Channels : Dropped::Elements);
  }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext& context, Saved* saved) const override {
    if (!context.training || p_ == 0) {
      if (saved) saved->tensors.clear();
      return inputs[0];
    }
    at::Tensor like = inputs[0];
    for (std::int64_t d = 2; channels_ && d < like.dim(); ++d) like = like.narrow(d, 0, 1);
    const at::Tensor mask = dropout_mask(like, p_, context);
    if (saved) saved->tensors = {mask};
    return at::mul(inputs[0], mask);
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved& saved,
                                         std::span<const bool>) const override {
    return {saved.tensors.empty() ? grad : at::mul(grad, saved.tensors[0])};
  }

 private:
  double p_;
  bool channels_;
};

class MaxPool2d : public Layer {
 public:
  MaxPool2d(std::int64_t kernel, std::int64_t stride, std::int64_t padding, LastWindow last)
      : kernel_(kernel), stride_(stride), padding_(padding), ceil_(last == LastWindow::Kept) {}
  std::string kind() const override { return "max_pool2d"; }
  CastPolicy cast_policy() const override { return CastPolicy::Promote; }
  bool like(const Layer& other) const override {
    const auto& o = static_cast<const MaxPool2d&>(other);
    return kernel_ == o.kernel_ && stride_ == o.stride_ && padding_ == o.padding_ && ceil_ == o.ceil_;
  }
  bool folds() const override { return true; }
  Shape output_shape(std::span<const Shape> inputs) const override {
    const Shape& x = inputs[0];
    // With ceil_mode, one partial window is enough.
    const std::int64_t least = kernel_ - 2 * padding_ - (ceil_ ? stride_ - 1 : 0);
    if (x.size() != 4 || x[2] < least || x[3] < least)
      throw_bad_shape("max_pool2d", x, "[B, C, H, W] with H, W >= " + std::to_string(least));
    const auto size = [&](std::int64_t n) {
      const std::int64_t left = n + 2 * padding_ - kernel_;
      const std::int64_t windows = (left + (ceil_ ? stride_ - 1 : 0)) / stride_ + 1;
      // A last window that would start in the padding after the image is not counted (as in torch).
      return ceil_ && (windows - 1) * stride_ >= n + padding_ ? windows - 1 : windows;
    };
    return {x[0], x[1], size(x[2]), size(x[3])};
  }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    auto [output, indices] = found_in(inputs[0]);
    if (saved) saved->tensors = {inputs[0], indices};
    return output;
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved& saved,
                                         std::span<const bool>) const override {
    return {at::max_pool2d_with_indices_backward(grad, saved.tensors[0], {kernel_, kernel_},
                                                 {stride_, stride_}, {padding_, padding_}, {1, 1}, ceil_,
                                                 saved.tensors[1])};
  }

 protected:
  /// Returns the maxima of the windows and their indices.
  std::tuple<at::Tensor, at::Tensor> found_in(const at::Tensor& x) const {
    return at::max_pool2d_with_indices(x, {kernel_, kernel_}, {stride_, stride_}, {padding_, padding_},
                                       {1, 1}, ceil_);
  }

 private:
  std::int64_t kernel_, stride_, padding_;
  bool ceil_;
};

class MaxPool2dIndices final : public MaxPool2d {
 public:
  using MaxPool2d::MaxPool2d;
  std::string kind() const override { return "max_pool2d_indices"; }
  std::vector<TensorSpec> outputs(std::span<const TensorSpec> inputs) const override {
    const Shape shapes[] = {inputs[0].shape};
    return {{.shape = output_shape(shapes), .dtype = at::kLong, .differentiable = false}};
  }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    if (saved) saved->tensors.clear();
    return std::get<1>(found_in(inputs[0]));
  }
  std::vector<at::Tensor> backward_input(const at::Tensor&, std::span<const at::Tensor>, Saved&,
                                         std::span<const bool>) const override {
    return {at::Tensor()};
  }
};

class MaxUnpool2d final : public Layer {
 public:
  MaxUnpool2d(std::int64_t height, std::int64_t width) : height_(height), width_(width) {}
  std::string kind() const override { return "max_unpool2d"; }
  CastPolicy cast_policy() const override { return CastPolicy::Promote; }
  bool like(const Layer& other) const override {
    const auto& o = static_cast<const MaxUnpool2d&>(other);
    return height_ == o.height_ && width_ == o.width_;
  }
  bool folds() const override { return true; }
  Shape output_shape(std::span<const Shape> inputs) const override {
    if (inputs.size() != 2 || inputs[0].size() != 4 || inputs[1] != inputs[0])
      throw_bad_shape("max_unpool2d", inputs.back(), "values [B, C, H, W] and indices of the same shape");
    return {inputs[0][0], inputs[0][1], height_, width_};
  }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    if (saved) saved->tensors = {inputs[1]};
    if (!at::globalContext().deterministicAlgorithms())
      return at::max_unpool2d(inputs[0], inputs[1], {height_, width_});
    // LibTorch rejects its own kernel in this case, on every device. This gives the same bits if all indices
    // are distinct.
    const at::Tensor result =
        at::zeros({inputs[0].size(0), inputs[0].size(1), height_, width_}, inputs[0].options());
    result.flatten(2).scatter_(2, inputs[1].flatten(2), inputs[0].flatten(2));
    return result;
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved& saved,
                                         std::span<const bool>) const override {
    const at::Tensor& indices = saved.tensors[0];
    return {grad.flatten(2).gather(2, indices.flatten(2)).view(indices.sizes()), at::Tensor()};
  }

 private:
  std::int64_t height_, width_;
};

class AdaptiveAvgPool2d final : public Layer {
 public:
  AdaptiveAvgPool2d(std::int64_t height, std::int64_t width) : height_(height), width_(width) {}
  std::string kind() const override { return "adaptive_avg_pool2d"; }
  CastPolicy cast_policy() const override { return CastPolicy::Promote; }
  bool like(const Layer& other) const override {
    const auto& o = static_cast<const AdaptiveAvgPool2d&>(other);
    return height_ == o.height_ && width_ == o.width_;
  }
  bool folds() const override { return true; }
  Shape output_shape(std::span<const Shape> inputs) const override {
    if (inputs[0].size() != 4) throw_bad_shape("adaptive_avg_pool2d", inputs[0], "[B, C, H, W]");
    return {inputs[0][0], inputs[0][1], height_, width_};
  }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    if (saved) saved->tensors = {inputs[0]};
    return at::_adaptive_avg_pool2d(inputs[0], {height_, width_});
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved& saved,
                                         std::span<const bool>) const override {
    return {at::_adaptive_avg_pool2d_backward(grad, saved.tensors[0])};
  }

 private:
  std::int64_t height_, width_;
};

class Flatten final : public Layer {
 public:
  std::string kind() const override { return "flatten"; }
  CastPolicy cast_policy() const override { return CastPolicy::Promote; }
  bool like(const Layer&) const override { return true; }
  bool folds() const override { return true; }
  Shape output_shape(std::span<const Shape> inputs) const override {
    std::int64_t features = 1;
    for (std::size_t i = 1; i < inputs[0].size(); ++i) features *= inputs[0][i];
    return {inputs[0][0], features};
  }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    if (saved) saved->numbers = inputs[0].sizes().vec();
    return inputs[0].reshape({inputs[0].size(0), -1});
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved& saved,
                                         std::span<const bool>) const override {
    return {grad.reshape(saved.numbers)};
  }
};

class Add final : public Layer {
 public:
  std::string kind() const override { return "add"; }
  CastPolicy cast_policy() const override { return CastPolicy::Promote; }
  bool like(const Layer&) const override { return true; }
  bool folds() const override { return true; }
  Shape output_shape(std::span<const Shape> inputs) const override {
    if (inputs.size() != 2 || inputs[0] != inputs[1])
      throw_bad_shape("add", inputs.back(), "two inputs of shape " + text_of(inputs[0]));
    return inputs[0];
  }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext&, Saved*) const override {
    return at::add(inputs[0], inputs[1]);
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved&,
                                         std::span<const bool>) const override {
    return {grad, grad};
  }
};

}  // namespace

LayerPtr linear(std::int64_t in, std::int64_t out, WeightInit init, double deviation) {
  return std::make_shared<Linear>(in, out, weight_and_bias({out, in}, in, out, out, true, init, deviation));
}
LayerPtr linear(std::int64_t in, std::int64_t out, const InitialValues& initial) {
  return linear(in, out, initial, "weight", "bias");
}
LayerPtr linear(std::int64_t in, std::int64_t out, const InitialValues& initial, std::string weight,
                std::string bias) {
  return std::make_shared<Linear>(
      in, out,
      std::vector<ParameterSpec>{
          {.name = std::move(weight), .shape = {out, in}, .init = initial.weight, .a = initial.weight_a},
          {.name = std::move(bias),
           .shape = {out},
           .init = initial.bias,
           .a = initial.bias_a,
           .kind = ParameterKind::Bias}});
}
LayerPtr conv2d(const ConvOptions& options) {
  return std::make_shared<PlainConvolution>(options, 2);
}
LayerPtr conv1d(const ConvOptions& options) {
  return std::make_shared<PlainConvolution>(options, 1);
}
LayerPtr conv3d(const ConvOptions& options) {
  return std::make_shared<PlainConvolution>(options, 3);
}
LayerPtr conv_transpose2d(const ConvTransposeOptions& options) {
  return std::make_shared<ConvTranspose>(options, 2);
}
LayerPtr conv_transpose3d(const ConvTransposeOptions& options) {
  return std::make_shared<ConvTranspose>(options, 3);
}
LayerPtr batch_norm2d(std::int64_t channels, const BatchNormOptions& options) {
  return std::make_shared<BatchNorm>(channels, Channels::Second, options);
}
LayerPtr batch_norm1d(std::int64_t channels, const BatchNormOptions& options) {
  return std::make_shared<BatchNorm>(channels, Channels::Last, options);
}
LayerPtr relu() {
  return std::make_shared<Relu>();
}
LayerPtr gelu(GeluForm form) {
  return std::make_shared<Gelu>(form);
}
LayerPtr tanh_layer() {
  return std::make_shared<Tanh>();
}
LayerPtr sigmoid_layer() {
  return std::make_shared<Sigmoid>();
}
LayerPtr max_pool2d(std::int64_t kernel, std::int64_t stride, std::int64_t padding, LastWindow last) {
  return std::make_shared<MaxPool2d>(kernel, stride, padding, last);
}
LayerPtr max_pool2d_indices(std::int64_t kernel, std::int64_t stride, std::int64_t padding, LastWindow last) {
  return std::make_shared<MaxPool2dIndices>(kernel, stride, padding, last);
}
LayerPtr max_unpool2d(std::int64_t height, std::int64_t width) {
  return std::make_shared<MaxUnpool2d>(height, width);
}
LayerPtr adaptive_avg_pool2d(std::int64_t height, std::int64_t width) {
  return std::make_shared<AdaptiveAvgPool2d>(height, width);
}
LayerPtr dropout(double p) {
  return std::make_shared<Dropout>(p, Dropped::Elements);
}
LayerPtr dropout2d(double p) {
  return std::make_shared<Dropout>(p, Dropped::Channels);
}
LayerPtr flatten() {
  return std::make_shared<Flatten>();
}
LayerPtr add() {
  return std::make_shared<Add>();
}

}  // namespace millrace
