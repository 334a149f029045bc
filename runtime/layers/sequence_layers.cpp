#include "runtime/layers/sequence_layers.h"

#include <sstream>

#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>

#include "runtime/base/error.h"

namespace millrace {
namespace {

[[noreturn]] void bad_shape(const std::string& layer, const Shape& found, const std::string& expected) {
  std::ostringstream out;
  out << layer << " got input " << c10::IntArrayRef(found) << ", expected " << expected;
  throw ConfigError(out.str());
}

class Embedding final : public Layer {
 public:
  explicit Embedding(const EmbeddingOptions& options) : o_(options) {}
  std::string kind() const override { return "embedding"; }
  std::vector<ParameterSpec> parameters() const override {
    return {{.name = "weight",
             .shape = {o_.vocabulary, o_.features},
             .init = o_.range > 0 ? Init::Uniform : Init::Normal,
             .a = o_.range > 0 ? o_.range : o_.deviation,
             .kind = ParameterKind::Embedding}};
  }
  Shape output_shape(std::span<const Shape> inputs) const override {
    Shape shape = inputs[0];
    shape.push_back(o_.features);
    return shape;
  }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> p, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    if (saved) saved->tensors = {inputs[0]};
    return at::embedding(p[0], inputs[0]);
  }
  std::vector<at::Tensor> backward_input(const at::Tensor&, std::span<const at::Tensor>, Saved&,
                                         std::span<const bool>) const override {
    return {at::Tensor()};
  }
  void backward_weight(const at::Tensor& grad, Saved& saved, std::span<at::Tensor> grads) const override {
    grads[0].add_(at::embedding_dense_backward(grad, saved.tensors[0], o_.vocabulary, /*padding_idx=*/-1,
                                               /*scale_grad_by_freq=*/false));
  }

 private:
  EmbeddingOptions o_;
};

class LayerNorm final : public Layer {
 public:
  LayerNorm(std::int64_t features, double epsilon) : features_(features), epsilon_(epsilon) {}
  std::string kind() const override { return "layer_norm"; }
  std::vector<ParameterSpec> parameters() const override {
    return {{.name = "weight", .shape = {features_}, .init = Init::Ones, .kind = ParameterKind::Norm},
            {.name = "bias", .shape = {features_}, .kind = ParameterKind::Norm}};
  }
  Shape output_shape(std::span<const Shape> inputs) const override {
    if (inputs[0].empty() || inputs[0].back() != features_)
      bad_shape("layer_norm", inputs[0], "[..., " + std::to_string(features_) + "]");
    return inputs[0];
  }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> p, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    auto [output, mean, inverse] = at::native_layer_norm(inputs[0], {features_}, p[0], p[1], epsilon_);
    if (saved) saved->tensors = {inputs[0], std::move(mean), std::move(inverse)};
    return output;
  }
  /// One kernel gives all three gradients; those of the parameters wait in `saved`.
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor> p, Saved& saved,
                                         std::span<const bool> needs) const override {
    auto [input, weight, bias] =
        at::native_layer_norm_backward(grad, saved.tensors[0], {features_}, saved.tensors[1],
                                       saved.tensors[2], p[0], p[1], {needs[0], true, true});
    saved.tensors = {std::move(weight), std::move(bias)};
    return {std::move(input)};
  }
  void backward_weight(const at::Tensor&, Saved& saved, std::span<at::Tensor> grads) const override {
    grads[0].add_(saved.tensors[0]);
    grads[1].add_(saved.tensors[1]);
  }

 private:
  std::int64_t features_;
  double epsilon_;
};

}  // namespace

LayerPtr embedding(const EmbeddingOptions& options) {
  return std::make_shared<Embedding>(options);
}
LayerPtr layer_norm(std::int64_t features, double epsilon) {
  return std::make_shared<LayerNorm>(features, epsilon);
}

}  // namespace millrace
