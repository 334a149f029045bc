// AlexNet, the one-tower form (arXiv 1404.5997); names as in torchvision.
#include "models/model.h"

namespace millrace {
namespace {

Result<LayeredModel> make_alexnet(const ModelOptions& options) {
  const int size = or_else(options, "image-size", 224), classes = or_else(options, "classes", 1000);
  if (size < 63) return too_small("AlexNet", size, 63);
  LayeredModel model = classifier("alexnet", {3, size, size}, classes);
  Chain chain(model);
  chain.then("features.0", conv2d({.in = 3, .out = 64, .kernel = 11, .stride = 4, .padding = 2}));
  chain.then("features.1", relu());
  chain.then("features.2", max_pool2d(3, 2));
  chain.then("features.3", conv2d({.in = 64, .out = 192, .kernel = 5, .padding = 2}));
  chain.then("features.4", relu());
  chain.then("features.5", max_pool2d(3, 2));
  chain.then("features.6", conv2d({.in = 192, .out = 384, .padding = 1}));
  chain.then("features.7", relu());
  chain.then("features.8", conv2d({.in = 384, .out = 256, .padding = 1}));
  chain.then("features.9", relu());
  chain.then("features.10", conv2d({.in = 256, .out = 256, .padding = 1}));
  chain.then("features.11", relu());
  chain.then("features.12", max_pool2d(3, 2));
  const double p = probability_or_else(options, "dropout", 0.5);
  chain.then("avgpool", adaptive_avg_pool2d(6, 6));
  chain.then("flatten", flatten());
  chain.then("classifier.0", dropout(p));
  chain.then("classifier.1", linear(256 * 36, 4096));
  chain.then("classifier.2", relu());
  chain.then("classifier.3", dropout(p));
  chain.then("classifier.4", linear(4096, 4096));
  chain.then("classifier.5", relu());
  chain.then("classifier.6", linear(4096, classes));
  end_in_cross_entropy(model, options);
  return model;
}

}  // namespace

std::vector<Model> alexnet_models() {
  return {{{.name = "alexnet",
            .summary = "AlexNet, the one-tower form (arXiv 1404.5997).",
            .options = image_options()},
           make_alexnet}};
}

}  // namespace millrace
