#include "models/exported/exported_layer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/layers/head.h"
#include "runtime/layers/recorded.h"
#include "runtime/layers/shape_errors.h"
#include "runtime/layers/sums_on_device.h"

namespace millrace {
namespace {

class ExportedLayer final : public MultiLayer {
 public:
  explicit ExportedLayer(ExportedLayerParts parts) : parts_(std::move(parts)) {}

  std::string kind() const override { return parts_.kind; }
  bool draws() const override { return parts_.calls->draws(); }
  CastPolicy cast_policy() const override { return parts_.cast_policy; }
  std::vector<ParameterSpec> parameters() const override { return parts_.parameters; }

  std::vector<TensorSpec> outputs(std::span<const TensorSpec> inputs) const override {
    std::vector<Shape> shapes;
    for (const TensorSpec& input : inputs) shapes.push_back(input.shape);
    const SymbolValues symbols = bind(shapes);
    // If inputs were cast to a lower precision, outputs have it too.
    const auto lower = std::ranges::find_if(
        inputs, [](const TensorSpec& t) { return t.dtype == at::kBFloat16 || t.dtype == at::kHalf; });
    const auto dtype = [&](const ExportedPort& output) {
      return output.dtype == at::kFloat && lower != inputs.end() ? lower->dtype : output.dtype;
    };
    std::vector<TensorSpec> specs;
    if (!parts_.symbols->frozen.empty()) {
      const std::vector<Shape> found = shapes_by_running(inputs, symbols);
      for (std::size_t i = 0; i < found.size(); ++i)
        specs.push_back({found[i], dtype(parts_.outputs[i]), parts_.outputs[i].differentiable});
      return specs;
    }
    for (const ExportedPort& output : parts_.outputs) {
      TensorSpec spec{.dtype = dtype(output), .differentiable = output.differentiable};
      for (const SizeExpression& size : output.sizes) {
        const auto value = size.value(symbols);
        if (!value || *value < 0)
          throw ConfigError("the size " + size.text() + " of " + output.name + " cannot be computed");
        spec.shape.push_back(*value);
      }
      specs.push_back(std::move(spec));
    }
    return specs;
  }

  std::vector<at::Tensor> forward_all(std::span<const at::Tensor> inputs,
                                      std::span<const at::Tensor> parameters, std::span<at::Tensor> buffers,
                                      const CallContext& context, Saved* saved) const override {
    const SymbolValues symbols = bind(shapes_of(inputs));
    CallPass pass{.symbols = &symbols,
                  .training = context.training,
                  .draws = parts_.draws,
                  .masks = context.masks,
                  .random_seed = context.random_seed};
    if (!context.training) return plain(run(inputs, parameters, buffers, pass));
    // Grad mode is on even if nothing is kept (recompute): without it LibTorch uses other kernels for an
    // LSTM.
    at::AutoGradMode with_grad(true);
    auto graph = std::make_shared<Graph>();
    for (const at::Tensor& input : inputs) graph->inputs.push_back(leaf_of(input));
    for (const at::Tensor& parameter : parameters) graph->parameters.push_back(leaf_of(parameter));
    pass.pending = &graph->pending;
    graph->outputs = run(graph->inputs, graph->parameters, buffers, pass);
    std::vector<at::Tensor> outputs = plain(graph->outputs);
    if (saved) saved->extra = std::move(graph);
    return outputs;
  }

  std::vector<at::Tensor> backward_input_all(std::span<const at::Tensor> grads, std::span<const at::Tensor>,
                                             Saved& saved, std::span<const bool> needs) const override {
    at::AutoGradMode with_grad(true);
    const auto graph = std::static_pointer_cast<Graph>(saved.extra);
    MILLRACE_CHECK(graph, "backward of a " << kind() << " without its forward");
    torch::autograd::variable_list roots, of_roots;
    for (std::size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined() || !graph->outputs[i].requires_grad()) continue;
      roots.push_back(std::move(graph->outputs[i]));
      of_roots.push_back(grads[i]);
    }
    if (!roots.empty()) torch::autograd::backward(roots, of_roots);
    graph->outputs.clear();
    std::vector<at::Tensor> result(graph->inputs.size());
    for (std::size_t i = 0; i < result.size(); ++i) {
      if (!needs[i]) continue;
      const at::Tensor& grad = graph->inputs[i].grad();
      result[i] = grad.defined() ? grad.contiguous() : at::zeros_like(graph->inputs[i].detach());
    }
    graph->inputs.clear();
    return result;
  }

  void backward_weight_all(std::span<const at::Tensor>, Saved& saved,
                           std::span<at::Tensor> grads) const override {
    const auto graph = std::static_pointer_cast<Graph>(std::exchange(saved.extra, nullptr));
    MILLRACE_CHECK(graph && graph->parameters.size() == grads.size(), kind());
    for (std::size_t i = 0; i < grads.size(); ++i)
      if (const at::Tensor& grad = graph->parameters[i].grad(); grad.defined()) grads[i].add_(grad);
    for (PendingWeights::One& one : graph->pending.all) {
      one.add(one.grad, grads);
      one = {};
    }
  }

 private:
  struct Graph {
    std::vector<at::Tensor> inputs, parameters;  ///< leaves
    std::vector<at::Tensor> outputs;
    PendingWeights pending;
  };

  static std::vector<Shape> shapes_of(std::span<const at::Tensor> tensors) {
    std::vector<Shape> shapes;
    for (const at::Tensor& tensor : tensors) shapes.push_back(tensor.sizes().vec());
    return shapes;
  }

  std::vector<Shape> shapes_by_running(std::span<const TensorSpec> inputs,
                                       const SymbolValues& symbols) const {
    at::NoGradGuard no_grad;
    std::vector<at::Tensor> zeros, parameters, buffers;
    for (const TensorSpec& input : inputs)
      zeros.push_back(at::zeros(  // parameters are float32 here; shapes do not depend on the type
          input.shape, at::TensorOptions(at::isFloatingType(input.dtype) ? at::kFloat : input.dtype)));
    for (const ParameterSpec& spec : parts_.parameters)
      (spec.is_buffer ? buffers : parameters).push_back(spec.value);
    return shapes_of(run(zeros, parameters, buffers, {.symbols = &symbols, .training = false}));
  }

  /// Returns plain and contiguous copies of outputs. Tensors that come over a border are so too, and later
  /// layers must use the same kernels in both cases.
  static std::vector<at::Tensor> plain(const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> result;
    for (const at::Tensor& tensor : tensors)
      result.push_back(tensor.detach().resolve_neg().contiguous());  // an imaginary part may be negated later
    return result;
  }

  /// Returns the outputs as their ports describe them. Autograd records the calls if grad mode is on.
  std::vector<at::Tensor> run(std::span<const at::Tensor> inputs, std::span<const at::Tensor> parameters,
                              std::span<at::Tensor> buffers, const CallPass& pass) const {
    std::vector<at::Tensor> outputs = parts_.calls->run(given(inputs, parameters, buffers), pass);
    for (std::size_t i = 0; i < outputs.size(); ++i)
      if (parts_.outputs[i].is_complex) outputs[i] = at::view_as_real(outputs[i].resolve_conj());
    return outputs;
  }

  std::vector<at::Tensor> given(std::span<const at::Tensor> inputs, std::span<const at::Tensor> parameters,
                                std::span<at::Tensor> buffers) const {
    std::vector<at::Tensor> all(inputs.begin(), inputs.end());
    for (std::size_t i = 0; i < all.size(); ++i)
      if (parts_.inputs[i].is_complex) all[i] = at::view_as_complex(all[i]);
    all.insert(all.end(), parameters.begin(), parameters.end());
    all.insert(all.end(), buffers.begin(), buffers.end());
    const at::Device device = all.empty() ? at::Device(at::kCPU) : all.front().device();
    for (const at::Tensor& constant : parts_.constants) all.push_back(constant.to(device));
    return all;
  }

  SymbolValues bind(const std::vector<Shape>& shapes) const {
    MILLRACE_CHECK(shapes.size() == parts_.inputs.size(), kind());
    SymbolValues symbols;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const ExportedPort& port = parts_.inputs[i];
      if (shapes[i].size() != port.sizes.size()) refuse(port, shapes[i]);
      for (std::size_t d = 0; d < shapes[i].size(); ++d) {
        const SizeExpression& size = port.sizes[d];
        if (size.is_number() && size.number() != shapes[i][d] &&
            !parts_.symbols->frozen.contains(size.number()))
          refuse(port, shapes[i]);
        if (!size.is_symbol()) continue;
        const auto known = symbols.find(size.symbol());
        if (known != symbols.end()) {
          if (known->second != shapes[i][d]) refuse(port, shapes[i]);
          continue;
        }
        check_range(port, size.symbol(), shapes[i][d]);
        symbols[size.symbol()] = shapes[i][d];
        const auto same = parts_.symbols->same.find(size.symbol());
        if (same == parts_.symbols->same.end()) continue;
        for (const std::string& other : same->second) symbols[other] = shapes[i][d];
      }
    }
    return symbols;
  }

  /// Checks a length against its range. A range from 2 means that PyTorch did not look at 1. The calls
  /// themselves take 1, so it is allowed.
  void check_range(const ExportedPort& port, const std::string& symbol, std::int64_t value) const {
    const auto found = parts_.symbols->ranges.find(symbol);
    if (found == parts_.symbols->ranges.end()) return;
    const SymbolRange& range = found->second;
    if (value >= (range.least <= 2 ? 1 : range.least) && value <= range.most) return;
    throw ConfigError("dimension " + symbol + " of " + port.name + " is " + std::to_string(value) +
                          "; the model was exported for " + std::to_string(range.least) + " to " +
                          (range.most == INT64_MAX ? "any" : std::to_string(range.most)),
                      "give data within it, or export with another range");
  }

  [[noreturn]] void refuse(const ExportedPort& port, const Shape& found) const {
    std::string expected;
    for (const SizeExpression& size : port.sizes) expected += (expected.empty() ? "" : ", ") + size.text();
    throw ConfigError(port.name + " is " + text_of(found) + ", the model was exported for [" + expected + "]",
                      parts_.symbols->advice);
  }

  ExportedLayerParts parts_;
};

class GraphLossHead : public Head, public IgnoresLabels {
 public:
  explicit GraphLossHead(int batch_dimension, std::vector<IgnoredLabels> ignored = {})
      : batch_dimension_(batch_dimension), ignored_(std::move(ignored)) {}
  const std::vector<IgnoredLabels>& ignored() const override { return ignored_; }
  std::string kind() const override { return "graph_loss"; }
  std::vector<std::string> metrics() const override { return {"loss"}; }
  void check(std::span<const TensorSpec> inputs) const override {
    if (inputs.size() != 2 || !inputs[0].shape.empty() || !at::isFloatingType(inputs[0].dtype))
      throw ConfigError("the loss of a graph is one floating number");
  }
  void forward(std::span<const at::Tensor> inputs, Saved* saved, std::span<double> sums) const override {
    const auto samples = static_cast<double>(inputs[1].size(batch_dimension_));
    sums[0] += inputs[0].item<double>() * samples;
    sums[1] += samples;
    if (saved) saved->tensors = {inputs[0]};
  }
  at::Tensor forward_on_device(std::span<const at::Tensor> inputs, Saved* saved) const override {
    if (saved) saved->tensors = {inputs[0]};
    return sums_on_device({inputs[0]}, double(inputs[1].size(batch_dimension_)));
  }
  std::vector<at::Tensor> backward(Saved& saved, LossScale scale, std::span<const bool>) const override {
    return {at::full({}, scale.share, saved.tensors[0].options()), at::Tensor()};
  }

 protected:
  int batch_dimension_;
  std::vector<IgnoredLabels> ignored_;
};

/// Counts the labels [sizes] that are not ignored and not cut off.
std::int64_t count_of(const std::int64_t* labels, at::IntArrayRef sizes, const CountedLabels& counted,
                      std::size_t d = 0) {
  if (d == sizes.size()) return *labels != counted.ignored;
  const std::int64_t stride = c10::multiply_integers(sizes.slice(d + 1));
  std::int64_t count = 0;
  for (std::int64_t i = counted.cut[d].first; i < sizes[d] - counted.cut[d].second; ++i)
    count += count_of(labels + i * stride, sizes, counted, d + 1);
  return count;
}

/// The loss of a graph that ignores some labels. A microbatch weighs as its samples, or as its labels that
/// count.
class LabelLossHead final : public GraphLossHead, public WeighsLabels {
 public:
  LabelLossHead(int batch_dimension, CountedLabels labels, bool counts)
      : GraphLossHead(batch_dimension), labels_(std::move(labels)), counts_(counts) {}
  std::string weight() const override { return counts_ ? kCountedLabels : GraphLossHead::weight(); }
  std::int64_t weight_of(std::span<const std::int64_t> labels, at::IntArrayRef sizes) const override {
    return count_of(labels.data(), sizes, labels_);
  }
  HeadPtr counting_labels() const override {
    return std::make_shared<LabelLossHead>(batch_dimension_, labels_, /*counts=*/true);
  }
  void forward(std::span<const at::Tensor> inputs, Saved* saved, std::span<double> sums) const override {
    if (!counts_) return GraphLossHead::forward(inputs, saved, sums);
    const at::Tensor found = forward_on_device(inputs, saved);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += found.const_data_ptr<double>()[i];
  }
  /// The mean over no label is NaN, which counts nothing.
  at::Tensor forward_on_device(std::span<const at::Tensor> inputs, Saved* saved) const override {
    if (!counts_) return GraphLossHead::forward_on_device(inputs, saved);
    if (saved) saved->tensors = {inputs[0]};
    at::Tensor labels = inputs[1];
    for (std::size_t d = 0; d < labels_.cut.size(); ++d) {
      const auto place = static_cast<std::int64_t>(d) + (static_cast<int>(d) < batch_dimension_ ? 0 : 1);
      const auto [front, behind] = labels_.cut[d];
      labels = labels.narrow(place, std::min(front, labels.size(place)),
                             std::max<std::int64_t>(0, labels.size(place) - front - behind));
    }
    const at::Tensor count = labels.ne(labels_.ignored).sum().to(at::kDouble);
    return at::stack({inputs[0].to(at::kDouble).mul(count).masked_fill_(count.eq(0), 0), count});
  }

 private:
  CountedLabels labels_;
  bool counts_;
};

}  // namespace

LayerPtr exported_layer(ExportedLayerParts parts) {
  return std::make_shared<ExportedLayer>(std::move(parts));
}

std::shared_ptr<const Head> graph_loss_head(int batch_dimension, std::optional<CountedLabels> labels,
                                            std::vector<IgnoredLabels> ignored) {
  if (labels) return std::make_shared<LabelLossHead>(batch_dimension, *std::move(labels), /*counts=*/false);
  return std::make_shared<GraphLossHead>(batch_dimension, std::move(ignored));
}

}  // namespace millrace
