// A model of layers, a layer of which only the forward is written, and a data set in memory.
#include "model.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

namespace {

using namespace millrace;

constexpr std::int64_t kInputs = 2, kClasses = 2;

/// The sine of a learned frequency times x, for each feature. [B, F] -> [B, F]. LibTorch supplies the
/// gradients. Replace it with a layer of yours.
class Sine final : public ForwardLayer {
 public:
  explicit Sine(std::int64_t features) : features_(features) {}
  std::string kind() const override { return "sine"; }
  std::vector<ParameterSpec> parameters() const override {
    return {{.name = "frequency", .shape = {features_}, .init = Init::Ones}};
  }
  Shape output_shape(std::span<const Shape> inputs) const override {
    if (inputs[0].back() != features_)
      throw ConfigError("sine has " + std::to_string(features_) + " features");
    return inputs[0];
  }
  bool draws() const override { return false; }  // it needs no random numbers
  at::Tensor compute(std::span<const at::Tensor> inputs, std::span<const at::Tensor> parameters,
                     std::span<at::Tensor>, const CallContext&) const override {
    return torch::sin(inputs[0] * parameters[0]);
  }

 private:
  std::int64_t features_;
};

/// Describes its fields, its layers and its head. The more layers, the better it can be cut into stages.
Result<LayeredModel> make(const ModelOptions& options) {
  const std::int64_t width = options.integer("width"), depth = options.integer("depth");
  LayeredModel model{.name = "my-model",
                     .fields = {{.name = "input", .shape = {kInputs}},
                                {.name = "target", .shape = {}, .dtype = at::kLong, .limit = kClasses}}};
  Chain chain(model);
  chain.then("embed", linear(kInputs, width));
  for (std::int64_t i = 0; i < depth; ++i) {
    chain.then("block" + std::to_string(i) + ".linear", linear(width, width));
    chain.then("block" + std::to_string(i) + ".sine", std::make_shared<Sine>(width));
  }
  chain.then("scores", linear(width, kClasses));
  model.heads.push_back({"loss", cross_entropy_head(), {chain.last(), "target"}});
  return model;
}

/// Points of a square: is a point inside the circle or not?
Result<std::shared_ptr<const Dataset>> make_circles(const DatasetOptions& options) {
  const bool trains = options.split == DataSplit::Train;
  auto generator = at::detail::createCPUGenerator(options.seed + (trains ? 1 : 2));
  const at::Tensor points = torch::rand({trains ? 1024 : 256, kInputs}, generator) * 2 - 1;
  return make_tensor_dataset(options.fields, {points, (points.square().sum(1) < 0.6).to(at::kLong)});
}

}  // namespace

Additions own() {
  return {
      .models = {{{.name = "my-model",
                   .summary = "Sines of a learned frequency between linear layers.",
                   .options = {integer_option("width", 32, {1, 4096}, "Width of the layers."),
                               integer_option("depth", 3, {1, 64}, "Blocks of a linear layer and a sine.")}},
                  make}},
      .datasets = {{"circles", make_circles}}};
}
