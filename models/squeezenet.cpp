// SqueezeNet 1.0 and 1.1 (arXiv 1602.07360); names and shapes as in torchvision.
#include "models/model.h"

namespace millrace {
namespace {

struct Part {
  int squeeze = 0, expand = 0;  ///< channels of a fire module; 0: the part is max pooling
};
constexpr Part kPool{};

struct SqueezeNetForm {
  ConvOptions stem;
  int smallest;  ///< size of the smallest image
  std::vector<Part> parts;
};

void fire(Chain& chain, const std::string& name, std::int64_t in, const Part& part) {
  const auto conv = [&](const std::string& layer, std::int64_t from, std::int64_t to, std::int64_t kernel,
                        const std::string& input) {
    chain.then(name + layer,
               conv2d({.in = from,
                       .out = to,
                       .kernel = kernel,
                       .padding = kernel / 2,
                       .init = WeightInit::KaimingUniform}),
               input);
    return chain.then(name + layer + "_activation", relu());
  };
  const std::string squeezed = conv(".squeeze", in, part.squeeze, 1, {});
  const std::string small = conv(".expand1x1", part.squeeze, part.expand, 1, squeezed);
  const std::string large = conv(".expand3x3", part.squeeze, part.expand, 3, squeezed);
  chain.join(name + ".concat", concat(), {small, large});
}

Result<LayeredModel> make_squeezenet(const std::string& name, const SqueezeNetForm& form,
                                     const ModelOptions& options) {
  const int size = or_else(options, "image-size", 224), classes = or_else(options, "classes", 1000);
  if (size < form.smallest) return too_small(name, size, form.smallest);
  LayeredModel model = classifier(name, {3, size, size}, classes);
  Chain chain(model);
  ConvOptions stem = form.stem;
  stem.init = WeightInit::KaimingUniform;
  chain.then("features.0", conv2d(stem));
  chain.then("features.1", relu());
  std::int64_t channels = stem.out;
  int index = 2;
  for (const Part& part : form.parts) {
    const std::string layer = "features." + std::to_string(index++);
    if (part.squeeze == 0) {
      chain.then(layer, max_pool2d(3, 2, 0, LastWindow::Kept));
      continue;
    }
    fire(chain, layer, channels, part);
    channels = 2 * part.expand;
  }
  chain.then("classifier.0", dropout(probability_or_else(options, "dropout", 0.5)));
  chain.then("classifier.1",
             conv2d({.in = channels, .out = classes, .kernel = 1, .init = WeightInit::Normal01}));
  chain.then("classifier.2", relu());
  chain.then("classifier.3", adaptive_avg_pool2d(1, 1));
  chain.then("flatten", flatten());
  end_in_cross_entropy(model, options);
  return model;
}

}  // namespace

std::vector<Model> squeezenet_models() {
  const SqueezeNetForm first{.stem = {.in = 3, .out = 96, .kernel = 7, .stride = 2},
                             .smallest = 21,
                             .parts = {kPool,
                                       {16, 64},
                                       {16, 64},
                                       {32, 128},
                                       kPool,
                                       {32, 128},
                                       {48, 192},
                                       {48, 192},
                                       {64, 256},
                                       kPool,
                                       {64, 256}}};
  const SqueezeNetForm second{.stem = {.in = 3, .out = 64, .kernel = 3, .stride = 2},
                              .smallest = 17,
                              .parts = {kPool,
                                        {16, 64},
                                        {16, 64},
                                        kPool,
                                        {32, 128},
                                        {32, 128},
                                        kPool,
                                        {48, 192},
                                        {48, 192},
                                        {64, 256},
                                        {64, 256}}};
  return {{{.name = "squeezenet1_0",
            .summary = "SqueezeNet: fire modules instead of wide convolutions (arXiv 1602.07360).",
            .options = image_options()},
           [=](const ModelOptions& options) { return make_squeezenet("squeezenet1_0", first, options); }},
          {{.name = "squeezenet1_1",
            .summary = "SqueezeNet 1.1: as accurate with 2.4 times less computation.",
            .options = image_options()},
           [=](const ModelOptions& options) { return make_squeezenet("squeezenet1_1", second, options); }}};
}

}  // namespace millrace
