#include "runtime/layers/module_layer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "runtime/base/check.h"
#include "runtime/layers/recorded.h"
#include "runtime/layers/seeded_draws.h"

namespace millrace {
namespace {

/// A module with its tensors. Parameters that are not trained (requires_grad false) are described, and
/// passed, as buffers.
struct Instance {
  explicit Instance(ModuleInstance m) : made(std::move(m)) {
    const auto named = made.module->named_parameters();
    for (const auto& entry : named) {
      if (entry.value().requires_grad()) add(entry.key(), entry.value(), parameters);
    }
    for (const auto& entry : named) {
      if (!entry.value().requires_grad()) add(entry.key(), entry.value(), buffers);
    }
    for (const auto& entry : made.module->named_buffers()) {
      if (entry.value().defined()) add(entry.key(), entry.value(), buffers);
    }
  }
  void add(const std::string& name, const at::Tensor& tensor, std::vector<at::Tensor>& list) {
    names.push_back(name);
    list.push_back(tensor);
  }

  ModuleInstance made;
  std::vector<std::string> names;               ///< names of the parameters, then of the buffers
  std::vector<at::Tensor> parameters, buffers;  ///< the module's own tensors
};

class ModuleLayer final : public Layer {
 public:
  ModuleLayer(std::function<ModuleInstance()> make, const ModuleOptions& options)
      : make_(std::move(make)), options_(options) {
    auto first = new_instance();
    for (std::size_t i = 0; i < first->names.size(); ++i) {
      const bool is_buffer = i >= first->parameters.size();
      const at::Tensor& tensor =
          is_buffer ? first->buffers[i - first->parameters.size()] : first->parameters[i];
      describe(first->names[i], tensor, is_buffer);
    }
    idle_.push_back(std::move(first));
  }

  std::string kind() const override { return options_.kind; }
  bool draws() const override { return options_.draws; }
  std::vector<ParameterSpec> parameters() const override { return specs_; }

  Shape output_shape(std::span<const Shape> inputs) const override {
    std::vector<TensorSpec> specs;
    for (const Shape& shape : inputs) specs.push_back({.shape = shape});
    return outputs(specs).front().shape;
  }

  std::vector<TensorSpec> outputs(std::span<const TensorSpec> inputs) const override {
    const auto zeros = run_on_zeros(inputs);
    const bool trains = std::ranges::any_of(specs_, [](const ParameterSpec& p) { return !p.is_buffer; });
    return {{.shape = zeros.first,
             .dtype = zeros.second,
             .differentiable = at::isFloatingType(zeros.second) &&
                               (trains || std::ranges::any_of(inputs, &TensorSpec::differentiable))}};
  }

  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> parameters,
                     std::span<at::Tensor> buffers, const CallContext& context, Saved* saved) const override {
    std::shared_ptr<Instance> instance = take_instance();
    give(instance->parameters, parameters);
    give(instance->buffers, buffers);
    instance->made.module->train(context.training);
    if (!saved) {
      at::Tensor output = call(*instance, inputs, context);
      put_back(std::move(instance));
      return output.detach();
    }
    at::AutoGradMode with_grad(true);
    auto graph = std::make_shared<Graph>();
    for (const at::Tensor& input : inputs) graph->inputs.push_back(leaf_of(input));
    graph->output = call(*instance, graph->inputs, context);
    graph->instance = std::move(instance);
    at::Tensor output = graph->output.detach().contiguous();
    saved->extra = std::move(graph);
    return output;
  }

  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved& saved,
                                         std::span<const bool>) const override {
    auto graph = std::static_pointer_cast<Graph>(std::exchange(saved.extra, nullptr));
    MILLRACE_CHECK(graph, "backward of a " << kind() << " without its forward");
    std::vector<at::Tensor> leaves = graph->inputs;
    leaves.insert(leaves.end(), graph->instance->parameters.begin(), graph->instance->parameters.end());
    std::vector<at::Tensor> gradients = gradients_of(graph->output, grad, leaves);
    const auto split = gradients.begin() + static_cast<std::ptrdiff_t>(graph->inputs.size());
    saved.tensors.assign(split, gradients.end());
    gradients.erase(split, gradients.end());
    graph->output.reset();
    put_back(std::move(graph->instance));
    return gradients;
  }

  void backward_weight(const at::Tensor&, Saved& saved, std::span<at::Tensor> grads) const override {
    for (std::size_t i = 0; i < grads.size(); ++i) {
      if (saved.tensors[i].defined()) grads[i].add_(saved.tensors[i]);
    }
  }

 private:
  struct Graph {
    std::vector<at::Tensor> inputs;
    at::Tensor output;
    std::shared_ptr<Instance> instance;  ///< the instance whose parameters are the graph's leaves
  };

  void describe(const std::string& name, const at::Tensor& tensor, bool is_buffer) {
    if (!is_buffer && tensor.scalar_type() != at::kFloat)
      throw ConfigError(options_.kind + ": parameter " + name + " is not float32");
    ParameterSpec spec{.name = name, .shape = tensor.sizes().vec(), .is_buffer = is_buffer};
    spec.is_counter = is_buffer && tensor.scalar_type() == at::kLong && tensor.dim() == 0;
    if (!spec.is_counter) spec.value = tensor.detach().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
    // The kind is derived from shape and name, so that biases and norms can be excluded from weight decay as
    // usual.
    // usual recipes.
    spec.kind = tensor.dim() > 1         ? ParameterKind::Weight
                : name.ends_with("bias") ? ParameterKind::Bias
                                         : ParameterKind::Norm;
    specs_.push_back(std::move(spec));
  }

  std::shared_ptr<Instance> new_instance() const {
    const SeededDraws seeded(at::kCPU, options_.seed);
    at::AutoGradMode with_grad(true);
    return std::make_shared<Instance>(make_());
  }

  std::shared_ptr<Instance> take_instance() const {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        auto instance = std::move(idle_.back());
        idle_.pop_back();
        return instance;
      }
    }
    return new_instance();
  }
  void put_back(std::shared_ptr<Instance> instance) const {
    // An idle instance must not keep old weights alive.
    for (auto* own : {&instance->parameters, &instance->buffers}) {
      for (at::Tensor& tensor : *own) tensor.set_data(at::empty({0}, tensor.options()));
    }
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(instance));
  }

  /// Makes the module's own tensors share the memory of `given`.
  template <class Tensors>
  static void give(std::vector<at::Tensor>& own, const Tensors& given) {
    MILLRACE_CHECK(own.size() == given.size());
    for (std::size_t i = 0; i < own.size(); ++i) own[i].set_data(given[i].detach());
  }

  at::Tensor call(Instance& instance, std::span<const at::Tensor> inputs, const CallContext& context) const {
    if (!options_.draws) return instance.made.forward(inputs);
    const SeededDraws seeded(inputs.front().device(), context.random_seed);
    return instance.made.forward(inputs);
  }

  std::pair<Shape, at::ScalarType> run_on_zeros(std::span<const TensorSpec> inputs) const {
    std::string key;
    std::vector<at::Tensor> zeros;
    for (const TensorSpec& input : inputs) {
      for (const std::int64_t size : input.shape) key += std::to_string(size) + ",";
      key += std::to_string(static_cast<int>(input.dtype)) + ";";
    }
    {
      const std::lock_guard lock(mutex_);
      if (const auto known = outputs_.find(key); known != outputs_.end()) return known->second;
    }
    // The new instance is float32; it receives tensors of the run's precision when it is called.
    at::ScalarType precision = at::kFloat;
    for (auto input = inputs.rbegin(); input != inputs.rend(); ++input) {
      if (at::isFloatingType(input->dtype)) precision = input->dtype;
    }
    for (const TensorSpec& input : inputs)
      zeros.push_back(at::zeros(input.shape, at::isFloatingType(input.dtype) ? at::kFloat : input.dtype));
    const at::NoGradGuard no_grad;
    const auto instance = new_instance();  // on the CPU, wherever the tensors of other instances are
    instance->made.module->eval();
    try {
      const at::Tensor output = instance->made.forward(zeros);
      const std::lock_guard lock(mutex_);
      const at::ScalarType type = output.is_floating_point() ? precision : output.scalar_type();
      return outputs_[key] = {output.sizes().vec(), type};
    } catch (const c10::Error& error) {
      throw ConfigError(options_.kind + " does not take these inputs: " + error.what_without_backtrace());
    }
  }

  std::function<ModuleInstance()> make_;
  ModuleOptions options_;
  std::vector<ParameterSpec> specs_;
  mutable std::mutex mutex_;  // guards the members below
  mutable std::vector<std::shared_ptr<Instance>> idle_;
  mutable std::map<std::string, std::pair<Shape, at::ScalarType>> outputs_;
};

}  // namespace

LayerPtr module_layer(std::function<ModuleInstance()> make, const ModuleOptions& options) {
  return std::make_shared<ModuleLayer>(std::move(make), options);
}

}  // namespace millrace
