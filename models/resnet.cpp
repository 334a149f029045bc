// ResNet (arXiv 1512.03385) and ResNeXt (arXiv 1611.05431), with the stride in the 3x3 convolution; names and
// shapes as in torchvision.
#include "models/model.h"

namespace millrace {
namespace {

enum class Block { Basic, Bottleneck };

struct ResNetForm {
  Block block = Block::Bottleneck;
  int blocks[4] = {3, 4, 6, 3};  ///< in each group
  int groups = 1;                ///< groups of the 3x3 convolutions
  int width = 64;                ///< channels of a group of convolutions in layer1
};

class ResNetBuilder {
 public:
  ResNetBuilder(LayeredModel& model, const ResNetForm& form, const ModelOptions& options)
      : chain_(model), form_(form), options_(options) {}

  std::string conv_norm(const std::string& conv_name, const std::string& norm_name, ConvOptions options,
                        const std::string& input = {}) {
    options.bias = false;
    options.init = WeightInit::KaimingFanOut;
    const std::int64_t out = options.out;
    chain_.then(conv_name, conv2d(options), input);
    return chain_.then(norm_name, norm_of(options_, out));
  }

  /// Appends a block: two 3x3 convolutions, or 1x1 - 3x3 - 1x1. The input is added to the result. `planes` is
  /// 64 in layer1.
  void block(const std::string& name, std::int64_t planes, std::int64_t stride) {
    const bool bottleneck = form_.block == Block::Bottleneck;
    const std::string input = chain_.last();
    const std::int64_t in = channels_, out = bottleneck ? 4 * planes : planes;
    if (bottleneck) {
      const std::int64_t width = planes * form_.width / 64 * form_.groups;
      conv_norm(name + ".conv1", name + ".bn1", {.in = in, .out = width, .kernel = 1});
      chain_.then(name + ".relu1", relu());
      conv_norm(
          name + ".conv2", name + ".bn2",
          {.in = width, .out = width, .kernel = 3, .stride = stride, .padding = 1, .groups = form_.groups});
      chain_.then(name + ".relu2", relu());
      conv_norm(name + ".conv3", name + ".bn3", {.in = width, .out = out, .kernel = 1});
    } else {
      conv_norm(name + ".conv1", name + ".bn1",
                {.in = in, .out = planes, .kernel = 3, .stride = stride, .padding = 1});
      chain_.then(name + ".relu1", relu());
      conv_norm(name + ".conv2", name + ".bn2", {.in = planes, .out = out, .kernel = 3, .padding = 1});
    }
    const std::string main = chain_.last();
    const bool reshapes = stride != 1 || in != out;
    const std::string skip = reshapes
                                 ? conv_norm(name + ".downsample.0", name + ".downsample.1",
                                             {.in = in, .out = out, .kernel = 1, .stride = stride}, input)
                                 : input;
    chain_.join(name + ".add", add(), {main, skip});
    chain_.then(name + ".relu", relu());
    channels_ = out;
  }

  Chain& chain() { return chain_; }
  std::int64_t channels() const { return channels_; }

 private:
  Chain chain_;
  ResNetForm form_;
  const ModelOptions& options_;
  std::int64_t channels_ = 64;
};

Result<LayeredModel> make_resnet(const std::string& name, const ResNetForm& form,
                                 const ModelOptions& options) {
  const int size = or_else(options, "image-size", 224);
  if (size < 32) return too_small(name, size, 32);
  const bool small_stem = stem_of(options) == "cifar";
  const int classes = or_else(options, "classes", size <= kMostCifarPixels ? 10 : 1000);
  LayeredModel model = classifier(name, {3, size, size}, classes);
  ResNetBuilder b(model, form, options);
  if (small_stem)
    b.conv_norm("conv1", "bn1", {.in = 3, .out = 64, .kernel = 3, .padding = 1});
  else
    b.conv_norm("conv1", "bn1", {.in = 3, .out = 64, .kernel = 7, .stride = 2, .padding = 3});
  b.chain().then("relu", relu());
  if (!small_stem) b.chain().then("maxpool", max_pool2d(3, 2, 1));
  for (int group = 0; group < 4; ++group) {
    for (int i = 0; i < form.blocks[group]; ++i) {
      b.block("layer" + std::to_string(group + 1) + "." + std::to_string(i), 64 << group,
              group > 0 && i == 0 ? 2 : 1);
    }
  }
  b.chain().then("avgpool", adaptive_avg_pool2d(1, 1));
  b.chain().then("flatten", flatten());
  if (const double p = options.number("dropout"); p > 0) b.chain().then("dropout", dropout(p));
  b.chain().then("fc", linear(b.channels(), classes));
  end_in_cross_entropy(model, options);
  return model;
}

}  // namespace

std::vector<Model> resnet_models() {
  const std::string resnet = "residual network (arXiv 1512.03385).",
                    resnext = "residual network of grouped convolutions (arXiv 1611.05431).";
  const std::tuple<std::string, std::string, ResNetForm> forms[] = {
      {"resnet18", "18-layer " + resnet, {.block = Block::Basic, .blocks = {2, 2, 2, 2}}},
      {"resnet50", "50-layer " + resnet, {}},
      {"resnet101", "101-layer " + resnet, {.blocks = {3, 4, 23, 3}}},
      {"resnext50_32x4d", "50-layer " + resnext, {.groups = 32, .width = 4}},
      {"resnext101_32x4d", "101-layer " + resnext, {.blocks = {3, 4, 23, 3}, .groups = 32, .width = 4}},
      {"resnext101_32x8d", "101-layer " + resnext, {.blocks = {3, 4, 23, 3}, .groups = 32, .width = 8}},
  };
  std::vector<ModelOption> model_options = image_options();
  model_options.push_back(norm_option());
  model_options.push_back(stem_option());
  std::vector<Model> models;
  for (const auto& [name, summary, form] : forms) {
    models.push_back({{.name = name, .summary = summary, .options = model_options},
                      [name = name, form = form](const ModelOptions& options) {
                        return make_resnet(name, form, options);
                      }});
  }
  return models;
}

}  // namespace millrace
