// MobileNetV3 large and small (arXiv 1905.02244, tables 1 and 2); names and shapes as in torchvision.
#include "models/model.h"

namespace millrace {
namespace {

enum class Squeeze { No, Yes };
enum class Act { Relu, HardSwish };

/// An inverted residual.
struct Row {
  int kernel, expanded, out;
  Squeeze squeeze;
  Act activation;
  int stride;
};

struct MobileNetV3Form {
  std::vector<Row> rows;
  int hidden;  ///< width of the classifier
};

constexpr std::int64_t kV3Stem = 16;
constexpr BatchNormOptions kNorm{.momentum = 0.01, .epsilon = 1e-3};

LayerPtr layer_of(Act activation) {
  return activation == Act::Relu ? relu() : hard_swish();
}

/// Rounds channels as the paper does: to a multiple of 8 that is at least 90 % of them.
std::int64_t multiple_of_8(std::int64_t channels) {
  const std::int64_t rounded = std::max<std::int64_t>(8, (channels + 4) / 8 * 8);
  return rounded * 10 < channels * 9 ? rounded + 8 : rounded;
}

class MobileNetV3Builder {
 public:
  explicit MobileNetV3Builder(LayeredModel& model) : chain_(model) {}

  /// Appends a convolution (`name`.0) and its normalisation (.1).
  void conv_norm(const std::string& name, ConvOptions options) {
    options.bias = false;
    options.init = WeightInit::KaimingFanOut;
    chain_.then(name + ".0", conv2d(options));
    chain_.then(name + ".1", batch_norm2d(options.out, kNorm));
  }
  void conv_norm_act(const std::string& name, const ConvOptions& options, Act activation) {
    conv_norm(name, options);
    chain_.then(name + ".2", layer_of(activation));
  }
  void squeeze_excite(const std::string& name, std::int64_t channels) {
    const std::string input = chain_.last();
    const std::int64_t squeezed = multiple_of_8(channels / 4);
    const auto conv = [&](const std::string& layer, std::int64_t in, std::int64_t out) {
      chain_.then(name + layer,
                  conv2d({.in = in, .out = out, .kernel = 1, .init = WeightInit::KaimingFanOut}));
    };
    chain_.then(name + ".avgpool", adaptive_avg_pool2d(1, 1));
    conv(".fc1", channels, squeezed);
    chain_.then(name + ".activation", relu());
    conv(".fc2", squeezed, channels);
    chain_.then(name + ".scale_activation", hard_sigmoid());
    chain_.join(name + ".scale", scale_channels(), {input, chain_.last()});
  }
  void inverted_residual(const std::string& name, const Row& row) {
    const std::string input = chain_.last();
    const std::int64_t in = channels_;
    int index = 0;
    const auto next = [&] { return name + ".block." + std::to_string(index++); };
    if (row.expanded != in)
      conv_norm_act(next(), {.in = in, .out = row.expanded, .kernel = 1}, row.activation);
    conv_norm_act(next(),
                  {.in = row.expanded,
                   .out = row.expanded,
                   .kernel = row.kernel,
                   .stride = row.stride,
                   .padding = row.kernel / 2,
                   .groups = row.expanded},
                  row.activation);
    if (row.squeeze == Squeeze::Yes) squeeze_excite(next(), row.expanded);
    conv_norm(next(), {.in = row.expanded, .out = row.out, .kernel = 1});
    if (row.stride == 1 && in == row.out) chain_.join(name + ".add", add(), {chain_.last(), input});
    channels_ = row.out;
  }

  Chain& chain() { return chain_; }
  std::int64_t channels() const { return channels_; }

 private:
  Chain chain_;
  std::int64_t channels_ = kV3Stem;
};

Result<LayeredModel> make_mobilenet_v3(const std::string& name, const MobileNetV3Form& form,
                                       const ModelOptions& options) {
  const int size = or_else(options, "image-size", 224), classes = or_else(options, "classes", 1000);
  LayeredModel model = classifier(name, {3, size, size}, classes);
  MobileNetV3Builder b(model);
  b.conv_norm_act("features.0", {.in = 3, .out = kV3Stem, .kernel = 3, .stride = 2, .padding = 1},
                  Act::HardSwish);
  int index = 1;
  for (const Row& row : form.rows) b.inverted_residual("features." + std::to_string(index++), row);
  const std::int64_t last = 6 * b.channels();
  b.conv_norm_act("features." + std::to_string(index), {.in = b.channels(), .out = last, .kernel = 1},
                  Act::HardSwish);
  b.chain().then("avgpool", adaptive_avg_pool2d(1, 1));
  b.chain().then("flatten", flatten());
  b.chain().then("classifier.0", linear(last, form.hidden, WeightInit::Normal01));
  b.chain().then("classifier.1", hard_swish());
  b.chain().then("classifier.2", dropout(probability_or_else(options, "dropout", 0.2)));
  b.chain().then("classifier.3", linear(form.hidden, classes, WeightInit::Normal01));
  end_in_cross_entropy(model, options);
  return model;
}

}  // namespace

std::vector<Model> mobilenet_v3_models() {
  constexpr auto kNo = Squeeze::No, kSe = Squeeze::Yes;
  constexpr auto kRe = Act::Relu, kHs = Act::HardSwish;
  const MobileNetV3Form large{.rows = {{3, 16, 16, kNo, kRe, 1},
                                       {3, 64, 24, kNo, kRe, 2},
                                       {3, 72, 24, kNo, kRe, 1},
                                       {5, 72, 40, kSe, kRe, 2},
                                       {5, 120, 40, kSe, kRe, 1},
                                       {5, 120, 40, kSe, kRe, 1},
                                       {3, 240, 80, kNo, kHs, 2},
                                       {3, 200, 80, kNo, kHs, 1},
                                       {3, 184, 80, kNo, kHs, 1},
                                       {3, 184, 80, kNo, kHs, 1},
                                       {3, 480, 112, kSe, kHs, 1},
                                       {3, 672, 112, kSe, kHs, 1},
                                       {5, 672, 160, kSe, kHs, 2},
                                       {5, 960, 160, kSe, kHs, 1},
                                       {5, 960, 160, kSe, kHs, 1}},
                              .hidden = 1280};
  const MobileNetV3Form small{.rows = {{3, 16, 16, kSe, kRe, 2},
                                       {3, 72, 24, kNo, kRe, 2},
                                       {3, 88, 24, kNo, kRe, 1},
                                       {5, 96, 40, kSe, kHs, 2},
                                       {5, 240, 40, kSe, kHs, 1},
                                       {5, 240, 40, kSe, kHs, 1},
                                       {5, 120, 48, kSe, kHs, 1},
                                       {5, 144, 48, kSe, kHs, 1},
                                       {5, 288, 96, kSe, kHs, 2},
                                       {5, 576, 96, kSe, kHs, 1},
                                       {5, 576, 96, kSe, kHs, 1}},
                              .hidden = 1024};
  const auto model = [](const std::string& name, const std::string& summary, const MobileNetV3Form& form) {
    return Model{{.name = name, .summary = summary, .options = image_options()},
                 [=](const ModelOptions& options) { return make_mobilenet_v3(name, form, options); }};
  };
  return {model("mobilenet_v3_large",
                "MobileNetV3 large: squeeze and excitation, hard-swish (arXiv 1905.02244).", large),
          model("mobilenet_v3_small", "MobileNetV3 small: the same with 2.5 million parameters.", small)};
}

}  // namespace millrace
