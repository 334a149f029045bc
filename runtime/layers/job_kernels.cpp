#include "runtime/layers/job_kernels.h"

#include <array>

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/sum.h>

#include "runtime/base/check.h"
#include "runtime/kernels/linear_kernels.h"
#include "runtime/layers/convolution.h"
#include "runtime/layers/group_normalisation.h"
#include "runtime/layers/shape_errors.h"

namespace millrace {
namespace {

/// The base of kernels. It checks no shapes: the jobs' layers have checked them.
class Kernel : public Layer {
 public:
  Shape output_shape(std::span<const Shape> inputs) const override { return inputs[0]; }
};

/// [B, ..., F] -> [B, R, F].
at::Tensor rows_of_jobs(const at::Tensor& x) {
  return x.dim() == 3 ? x : x.reshape({x.size(0), -1, x.size(-1)});
}

class LinearOfJobs final : public Kernel, public OneCall {
 public:
  std::string kind() const override { return "linear"; }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> p, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    const at::Tensor rows = rows_of_jobs(inputs[0]);
    if (saved) saved->tensors = {rows};
    return in_shape_of(linear_forward_of_jobs(rows, p[0], p[1]), inputs[0]);
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor> p, Saved&,
                                         std::span<const bool> needs) const override {
    if (!needs[0]) return {at::Tensor()};
    return {in_shape_of(linear_input_gradient_of_jobs(rows_of_jobs(grad), p[0]), grad)};
  }
  void backward_weight(const at::Tensor& grad, Saved& saved, std::span<at::Tensor> grads) const override {
    add_linear_gradients_of_jobs_(saved.tensors[0], rows_of_jobs(grad), grads[0], grads[1]);
  }

 private:
  static at::Tensor in_shape_of(const at::Tensor& rows, const at::Tensor& x) {
    if (x.dim() == 3) return rows;
    Shape shape = x.sizes().vec();
    shape.back() = rows.size(2);
    return rows.view(shape);
  }
};

/// Returns [B, N, C, ...] as [N, B C, ...]; a view if the memory layout allows it.
at::Tensor channels_of_jobs(const at::Tensor& x) {
  Shape shape(x.sizes().begin() + 1, x.sizes().end());
  shape[1] *= x.size(0);
  return x.transpose(0, 1).reshape(shape);
}
/// Returns [N, B C, ...] as [B, N, C, ...]; a view.
at::Tensor apart(const at::Tensor& x, std::int64_t jobs) {
  Shape shape = x.sizes().vec();
  shape[1] /= jobs;
  shape.insert(shape.begin() + 1, jobs);
  return x.reshape(shape).transpose(0, 1);
}

/// Runs the convolutions of all jobs as one. If all jobs share the input, it has B times as many output
/// channels. A transposed one cannot, because its weight starts with the input channels. Otherwise it has B
/// times as many groups.
class ConvolutionOfJobs final : public Kernel, public OneCall {
 public:
  template <typename Options>
  explicit ConvolutionOfJobs(const Options& options) : call_(options), groups_(options.groups) {}
  std::string kind() const override { return call_.transposed ? "conv_transpose" : "convolution"; }

  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> p, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    const std::int64_t jobs = inputs[0].size(0);
    const bool shared = jobs > 1 && inputs[0].stride(0) == 0 && groups_ == 1 && !call_.transposed;
    const at::Tensor x =
        call_.padded(shared ? inputs[0].select(0, 0).contiguous() : channels_of_jobs(inputs[0]));
    const std::int64_t groups = shared ? 1 : jobs * groups_;
    if (saved) {
      saved->tensors = {x};
      saved->numbers = {jobs, groups};
    }
    return apart(call_.forward(x, side_by_side(p[0]), call_.bias ? p[1].flatten() : at::Tensor(), groups),
                 jobs);
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor> p, Saved& saved,
                                         std::span<const bool> needs) const override {
    if (!needs[0]) return {at::Tensor()};
    const std::int64_t jobs = saved.numbers[0];
    MILLRACE_CHECK(saved.numbers[1] > 1 || jobs == 1, "a gradient for what the jobs share");
    const at::Tensor of_padded =
        std::get<0>(gradients(grad, saved, side_by_side(p[0]), {true, false, false}));
    return {apart(call_.unpadded(of_padded), jobs)};
  }
  void backward_weight(const at::Tensor& grad, Saved& saved, std::span<at::Tensor> grads) const override {
    const at::Tensor shape =
        at::empty(side_by_side_shape(grads[0]), grads[0].options());  // only its shape is read
    auto [input, weight, bias] = gradients(grad, saved, shape, {false, true, call_.bias});
    grads[0].add_(weight.view(grads[0].sizes()));
    if (call_.bias) grads[1].add_(bias.view(grads[1].sizes()));
  }

 private:
  static Shape side_by_side_shape(const at::Tensor& weight) {
    Shape shape(weight.sizes().begin() + 1, weight.sizes().end());
    shape.front() *= weight.size(0);
    return shape;
  }
  /// Returns the concatenated weights of all jobs, as a copy because they are separate. It is not kept
  /// between forward and backward, where it would double the memory of weights.
  static at::Tensor side_by_side(const at::Tensor& weight) {
    return weight.reshape(side_by_side_shape(weight));
  }
  std::tuple<at::Tensor, at::Tensor, at::Tensor> gradients(const at::Tensor& grad, const Saved& saved,
                                                           const at::Tensor& weight,
                                                           std::array<bool, 3> mask) const {
    return call_.gradients(channels_of_jobs(grad), saved.tensors[0], weight, saved.numbers[1], mask);
  }
  ConvolutionCall call_;
  std::int64_t groups_;
};

class EmbeddingOfJobs final : public Kernel {
 public:
  explicit EmbeddingOfJobs(std::int64_t padding) : padding_(padding) {}
  std::string kind() const override { return "embedding"; }

  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> p, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    const at::Tensor rows = inputs[0].reshape({inputs[0].size(0), -1});  // [B, N]
    at::Tensor output = at::empty({rows.size(0), rows.size(1), p[0].size(2)}, p[0].options());
    for (std::int64_t b = 0; b < rows.size(0); ++b) {
      at::Tensor own = output.select(0, b);
      at::index_select_out(own, p[0].select(0, b), 0, rows.select(0, b));
    }
    if (saved) saved->tensors = {rows};
    Shape shape = inputs[0].sizes().vec();
    shape.push_back(p[0].size(2));
    return output.view(shape);
  }
  std::vector<at::Tensor> backward_input(const at::Tensor&, std::span<const at::Tensor>, Saved&,
                                         std::span<const bool>) const override {
    return {at::Tensor()};
  }
  void backward_weight(const at::Tensor& grad, Saved& saved, std::span<at::Tensor> grads) const override {
    const at::Tensor& rows = saved.tensors[0];
    at::Tensor of_rows = rows_of_jobs(grad);
    if (padding_ >= 0) of_rows = of_rows.masked_fill(rows.eq(padding_).unsqueeze(2), 0);
    for (std::int64_t b = 0; b < rows.size(0); ++b)
      grads[0].select(0, b).index_add_(0, rows.select(0, b), of_rows.select(0, b));
  }

 private:
  std::int64_t padding_;
};

class BatchNormOfJobs final : public Kernel, public OneCall {
 public:
  BatchNormOfJobs(const BatchNormOptions& options, bool rows) : o_(options), rows_(rows) {}
  std::string kind() const override { return rows_ ? "batch_norm1d" : "batch_norm2d"; }

  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> p,
                     std::span<at::Tensor> buffers, const CallContext& context, Saved* saved) const override {
    const at::Tensor x = side_by_side(inputs[0]), weight = p[0].reshape({-1}), bias = p[1].reshape({-1});
    const at::Tensor running_mean = buffers[0].reshape({-1}), running_var = buffers[1].reshape({-1});
    if (context.training) require_statistics(x.sizes(), x.size(1));
    auto [output, mean, inverse] = at::native_batch_norm(x, weight, bias, running_mean, running_var,
                                                         context.training, o_.momentum, o_.epsilon);
    if (context.training) {
      for (int i : {0, 1}) {
        const at::Tensor& now = i == 0 ? running_mean : running_var;
        at::Tensor& kept = buffers[i];
        if (now.data_ptr() != kept.data_ptr()) kept.copy_(now.view(kept.sizes()));
      }
      buffers[2].add_(1);
    }
    if (saved) {
      saved->tensors = {x, std::move(mean), std::move(inverse), weight};
    }
    return restored(output, inputs[0]);
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved& saved,
                                         std::span<const bool> needs) const override {
    const auto& s = saved.tensors;
    auto [input, weight, bias] = at::native_batch_norm_backward(
        side_by_side(grad), s[0], s[3], {}, {}, s[1], s[2], true, o_.epsilon, {needs[0], true, true});
    saved.tensors = {std::move(weight), std::move(bias)};
    return {input.defined() ? restored(input, grad) : input};
  }
  void backward_weight(const at::Tensor&, Saved& saved, std::span<at::Tensor> grads) const override {
    for (std::size_t i : {0, 1}) grads[i].add_(saved.tensors[i].view(grads[i].sizes()));
  }

 private:
  at::Tensor side_by_side(const at::Tensor& x) const { return channels_of_jobs(rows_ ? rows_of_jobs(x) : x); }
  static at::Tensor restored(const at::Tensor& x, const at::Tensor& like) {
    return apart(x, like.size(0)).reshape(like.sizes());
  }
  BatchNormOptions o_;
  bool rows_;
};

/// Normalises all jobs at once, with B times as many groups of B times as many channels.
class GroupNormOfJobs final : public Kernel, public OneCall {
 public:
  GroupNormOfJobs(std::int64_t groups, double epsilon) : groups_(groups), epsilon_(epsilon) {}
  std::string kind() const override { return "group_norm"; }

  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> p, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    const std::int64_t jobs = inputs[0].size(0);
    return apart(
        normalise_groups(channels_of_jobs(inputs[0]), side_by_side(p), jobs * groups_, epsilon_, saved),
        jobs);
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor> p, Saved& saved,
                                         std::span<const bool> needs) const override {
    const std::int64_t jobs = grad.size(0);
    const at::Tensor input =
        group_gradients(channels_of_jobs(grad), side_by_side(p), jobs * groups_, saved, needs[0]);
    return {input.defined() ? apart(input, jobs) : input};
  }
  void backward_weight(const at::Tensor&, Saved& saved, std::span<at::Tensor> grads) const override {
    for (std::size_t i = 0; i < grads.size(); ++i) grads[i].add_(saved.tensors[i].view(grads[i].sizes()));
  }

 private:
  static std::vector<at::Tensor> side_by_side(std::span<const at::Tensor> p) {
    std::vector<at::Tensor> all;
    for (const at::Tensor& one : p) all.push_back(one.reshape({-1}));
    return all;
  }
  std::int64_t groups_;
  double epsilon_;
};

/// Normalises all jobs without weight and bias, then applies each job's own.
class LayerNormOfJobs final : public Kernel, public OneCall {
 public:
  LayerNormOfJobs(std::int64_t features, double epsilon) : features_(features), epsilon_(epsilon) {}
  std::string kind() const override { return "layer_norm"; }

  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> p, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    const at::Tensor x = inputs[0].contiguous();
    auto [normal, mean, inverse] = at::native_layer_norm(x, {features_}, {}, {}, epsilon_);
    at::Tensor output =
        at::mul(rows_of_jobs(normal), p[0].unsqueeze(1)).add_(p[1].unsqueeze(1)).view(x.sizes());
    if (saved) saved->tensors = {x, std::move(mean), std::move(inverse), std::move(normal)};
    return output;
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor> p, Saved& saved,
                                         std::span<const bool> needs) const override {
    if (!needs[0]) return {at::Tensor()};
    const auto& s = saved.tensors;
    const at::Tensor scaled = at::mul(rows_of_jobs(grad), p[0].unsqueeze(1)).view(s[0].sizes());
    return {std::get<0>(
        at::native_layer_norm_backward(scaled, s[0], {features_}, s[1], s[2], {}, {}, {true, false, false}))};
  }
  void backward_weight(const at::Tensor& grad, Saved& saved, std::span<at::Tensor> grads) const override {
    const at::Tensor rows = rows_of_jobs(grad);
    grads[0].add_(at::sum(at::mul(rows, rows_of_jobs(saved.tensors[3])), 1));
    grads[1].add_(at::sum(rows, 1));
  }

 private:
  std::int64_t features_;
  double epsilon_;
};

class LearnedPositionsOfJobs final : public Kernel {
 public:
  std::string kind() const override { return "learned_positions"; }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> p, std::span<at::Tensor>,
                     const CallContext&, Saved*) const override {
    return at::add(inputs[0], p[0].narrow(1, 0, inputs[0].size(2)).unsqueeze(1));
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved&,
                                         std::span<const bool>) const override {
    return {grad};
  }
  void backward_weight(const at::Tensor& grad, Saved&, std::span<at::Tensor> grads) const override {
    grads[0].narrow(1, 0, grad.size(2)).add_(at::sum(grad, 1));
  }
};

}  // namespace

LayerPtr linear_over_jobs() {
  return std::make_shared<LinearOfJobs>();
}
LayerPtr conv_over_jobs(const ConvOptions& options) {
  return std::make_shared<ConvolutionOfJobs>(options);
}
LayerPtr batch_norm_over_jobs(const BatchNormOptions& options, bool rows) {
  return std::make_shared<BatchNormOfJobs>(options, rows);
}
LayerPtr group_norm_over_jobs(std::int64_t groups, double epsilon) {
  return std::make_shared<GroupNormOfJobs>(groups, epsilon);
}
LayerPtr layer_norm_over_jobs(std::int64_t features, double epsilon) {
  return std::make_shared<LayerNormOfJobs>(features, epsilon);
}
LayerPtr conv_transpose_over_jobs(const ConvTransposeOptions& options) {
  return std::make_shared<ConvolutionOfJobs>(options);
}
LayerPtr embedding_over_jobs(std::int64_t padding) {
  return std::make_shared<EmbeddingOfJobs>(padding);
}
LayerPtr learned_positions_over_jobs() {
  return std::make_shared<LearnedPositionsOfJobs>();
}

}  // namespace millrace
