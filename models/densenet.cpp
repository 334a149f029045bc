// DenseNet-121 (arXiv 1608.06993); names and shapes as in torchvision. A layer reads all earlier outputs of
// its block as one tensor, which each layer makes longer. So a cut inside a block sends a single tensor, and
// a layer copies no more than it would to join a list of pieces.
#include "models/model.h"

namespace millrace {
namespace {

constexpr std::int64_t kGrowth = 32, kBottleneck = 4 * kGrowth, kDenseNetStem = 64;
constexpr int kLayers[] = {6, 12, 24, 16};

class DenseNetBuilder {
 public:
  explicit DenseNetBuilder(LayeredModel& model) : chain_(model) {}

  void conv(const std::string& name, ConvOptions options) {
    options.bias = false;
    options.init = WeightInit::KaimingFanIn;
    chain_.then(name, conv2d(options));
  }
  void norm_relu(const std::string& norm, const std::string& activation, std::int64_t channels) {
    chain_.then(norm, batch_norm2d(channels));
    chain_.then(activation, relu());
  }
  void dense_layer(const std::string& name, double p) {
    const std::string before = chain_.last();
    norm_relu(name + ".norm1", name + ".relu1", channels_);
    conv(name + ".conv1", {.in = channels_, .out = kBottleneck, .kernel = 1});
    norm_relu(name + ".norm2", name + ".relu2", kBottleneck);
    conv(name + ".conv2", {.in = kBottleneck, .out = kGrowth, .kernel = 3, .padding = 1});
    if (p > 0) chain_.then(name + ".dropout", dropout(p));
    chain_.join(name + ".concat", concat(), {before, chain_.last()});
    channels_ += kGrowth;
  }
  void transition(const std::string& name) {
    norm_relu(name + ".norm", name + ".relu", channels_);
    conv(name + ".conv", {.in = channels_, .out = channels_ / 2, .kernel = 1});
    chain_.then(name + ".pool", avg_pool2d({.kernel = 2, .stride = 2}));
    channels_ /= 2;
  }

  Chain& chain() { return chain_; }
  std::int64_t channels() const { return channels_; }

 private:
  Chain chain_;
  std::int64_t channels_ = kDenseNetStem;
};

Result<LayeredModel> make_densenet121(const ModelOptions& options) {
  const int size = or_else(options, "image-size", 224), classes = or_else(options, "classes", 1000);
  if (size < 29) return too_small("DenseNet", size, 29);
  const double p = probability_or_else(options, "dropout", 0);
  LayeredModel model = classifier("densenet121", {3, size, size}, classes);
  DenseNetBuilder b(model);
  b.conv("features.conv0", {.in = 3, .out = kDenseNetStem, .kernel = 7, .stride = 2, .padding = 3});
  b.norm_relu("features.norm0", "features.relu0", kDenseNetStem);
  b.chain().then("features.pool0", max_pool2d(3, 2, 1));
  for (int block = 1; block <= 4; ++block) {
    const std::string number = std::to_string(block);
    for (int layer = 1; layer <= kLayers[block - 1]; ++layer)
      b.dense_layer("features.denseblock" + number + ".denselayer" + std::to_string(layer), p);
    if (block < 4) b.transition("features.transition" + number);
  }
  b.norm_relu("features.norm5", "relu", b.channels());
  b.chain().then("avgpool", adaptive_avg_pool2d(1, 1));
  b.chain().then("flatten", flatten());
  b.chain().then("classifier", linear(b.channels(), classes, WeightInit::ZeroBias));
  end_in_cross_entropy(model, options);
  return model;
}

}  // namespace

std::vector<Model> densenet_models() {
  return {{{.name = "densenet121",
            .summary = "DenseNet of 121 layers, each of which reads all before it (arXiv 1608.06993).",
            .options = image_options()},
           make_densenet121}};
}

}  // namespace millrace
