// VGG-16, configuration D (arXiv 1409.1556), with and without batch normalisation; names as in torchvision.
#include "models/model.h"

namespace millrace {
namespace {

Result<LayeredModel> make_vgg16(const ModelOptions& options, bool batch_norm) {
  static constexpr int kPool = 0;
  static constexpr int kConfiguration[] = {64,    64,  kPool, 128, 128,   kPool, 256, 256, 256,
                                           kPool, 512, 512,   512, kPool, 512,   512, 512, kPool};
  const int size = or_else(options, "image-size", 224);
  if (size < 32) return too_small("VGG-16", size, 32);
  const bool small =
      size <= kMostCifarPixels;  // CIFAR: a 512-wide classifier on the last 1x1 or 2x2 features
  const int classes = or_else(options, "classes", small ? 10 : 1000);
  LayeredModel model = classifier(batch_norm ? "vgg16_bn" : "vgg16", {3, size, size}, classes);
  Chain chain(model);
  int index = 0, channels = 3;
  const auto feature = [&](LayerPtr layer) {
    chain.then("features." + std::to_string(index++), std::move(layer));
  };
  for (int out : kConfiguration) {
    if (out == kPool) {
      feature(max_pool2d(2, 2));
      continue;
    }
    feature(
        conv2d({.in = channels, .out = out, .kernel = 3, .padding = 1, .init = WeightInit::KaimingFanOut}));
    if (batch_norm) feature(batch_norm2d(out));
    feature(relu());
    channels = out;
  }
  const int pooled = small ? 1 : 7, hidden = small ? 512 : 4096;
  const double p = probability_or_else(options, "dropout", 0.5);
  // Linear layers of width 512 with deviation 0.01 would not train, so the small form takes PyTorch's
  // default.
  const WeightInit init = small ? WeightInit::PyTorch : WeightInit::Normal01;
  chain.then("avgpool", adaptive_avg_pool2d(pooled, pooled));
  chain.then("flatten", flatten());
  chain.then("classifier.0", linear(512 * pooled * pooled, hidden, init));
  chain.then("classifier.1", relu());
  chain.then("classifier.2", dropout(p));
  chain.then("classifier.3", linear(hidden, hidden, init));
  chain.then("classifier.4", relu());
  chain.then("classifier.5", dropout(p));
  chain.then("classifier.6", linear(hidden, classes, init));
  end_in_cross_entropy(model, options);
  return model;
}

}  // namespace

std::vector<Model> vgg16_models() {
  return {
      {{.name = "vgg16", .summary = "VGG, configuration D (arXiv 1409.1556).", .options = image_options()},
       [](const ModelOptions& options) { return make_vgg16(options, false); }},
      {{.name = "vgg16_bn", .summary = "The same with batch normalisation.", .options = image_options()},
       [](const ModelOptions& options) { return make_vgg16(options, true); }}};
}

}  // namespace millrace
