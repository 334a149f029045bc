// MobileNetV2 (arXiv 1801.04381); names and shapes as in torchvision.
#include "models/model.h"

namespace millrace {
namespace {

/// A row of inverted residuals: expansion, channels, number of blocks, stride of the first.
struct Stage {
  int expansion, channels, times, stride;
};
constexpr Stage kStages[] = {{1, 16, 1, 1}, {6, 24, 2, 2},  {6, 32, 3, 2}, {6, 64, 4, 2},
                             {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}};
constexpr std::int64_t kV2Stem = 32, kLast = 1280;

class MobileNetV2Builder {
 public:
  explicit MobileNetV2Builder(LayeredModel& model) : chain_(model) {}

  void conv_norm(const std::string& conv, const std::string& norm, ConvOptions options) {
    options.bias = false;
    options.init = WeightInit::KaimingFanOut;
    chain_.then(conv, conv2d(options));
    chain_.then(norm, batch_norm2d(options.out));
  }
  /// Appends a convolution (`name`.0), its normalisation (.1) and the activation (.2).
  void conv_norm_relu6(const std::string& name, const ConvOptions& options) {
    conv_norm(name + ".0", name + ".1", options);
    chain_.then(name + ".2", relu6());
  }
  void inverted_residual(const std::string& name, const Stage& stage, std::int64_t stride) {
    const std::string input = chain_.last();
    const std::int64_t in = channels_, hidden = in * stage.expansion, out = stage.channels;
    int index = 0;
    const auto next = [&] { return name + ".conv." + std::to_string(index++); };
    if (stage.expansion != 1) conv_norm_relu6(next(), {.in = in, .out = hidden, .kernel = 1});
    conv_norm_relu6(
        next(), {.in = hidden, .out = hidden, .kernel = 3, .stride = stride, .padding = 1, .groups = hidden});
    const std::string project = next();
    conv_norm(project, next(), {.in = hidden, .out = out, .kernel = 1});
    if (stride == 1 && in == out) chain_.join(name + ".add", add(), {chain_.last(), input});
    channels_ = out;
  }

  Chain& chain() { return chain_; }
  std::int64_t channels() const { return channels_; }

 private:
  Chain chain_;
  std::int64_t channels_ = kV2Stem;
};

Result<LayeredModel> make_mobilenet_v2(const ModelOptions& options) {
  const int size = or_else(options, "image-size", 224), classes = or_else(options, "classes", 1000);
  LayeredModel model = classifier("mobilenet_v2", {3, size, size}, classes);
  MobileNetV2Builder b(model);
  b.conv_norm_relu6("features.0", {.in = 3, .out = kV2Stem, .kernel = 3, .stride = 2, .padding = 1});
  int index = 1;
  for (const Stage& stage : kStages) {
    for (int i = 0; i < stage.times; ++i)
      b.inverted_residual("features." + std::to_string(index++), stage, i == 0 ? stage.stride : 1);
  }
  b.conv_norm_relu6("features." + std::to_string(index), {.in = b.channels(), .out = kLast, .kernel = 1});
  b.chain().then("avgpool", adaptive_avg_pool2d(1, 1));
  b.chain().then("flatten", flatten());
  b.chain().then("classifier.0", dropout(probability_or_else(options, "dropout", 0.2)));
  b.chain().then("classifier.1", linear(kLast, classes, WeightInit::Normal01));
  end_in_cross_entropy(model, options);
  return model;
}

}  // namespace

std::vector<Model> mobilenet_v2_models() {
  return {{{.name = "mobilenet_v2",
            .summary = "MobileNetV2: depthwise convolutions in inverted residuals (arXiv 1801.04381).",
            .options = image_options()},
           make_mobilenet_v2}};
}

}  // namespace millrace
