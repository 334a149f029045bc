// Inception v3 (arXiv 1512.00567); names and shapes as in torchvision. The auxiliary classifier after
// Mixed_6e is a second head. Its layers come directly after Mixed_6e, so they can run in Mixed_6e's stage and
// send only their scores to the last one. An evaluation computes this head too, under its own name.
#include <map>

#include "models/model.h"
#include "runtime/layers/soft_cross_entropy.h"

namespace millrace {
namespace {

constexpr BatchNormOptions kInceptionNorm{.epsilon = 1e-3};
// torchvision draws from a normal distribution cut off at +-2, which a deviation of 0.1 never reaches.
constexpr double kDeviation = 0.1, kAuxiliaryDeviation = 0.001;
// Mixed_6e must be 17 x 17 for the 5x5 convolution of the auxiliary classifier.
constexpr int kSmallest = 75, kSmallestWithAuxiliary = 299;

using Name = std::string;

class InceptionBuilder {
 public:
  explicit InceptionBuilder(LayeredModel& model) : chain_(model) {}

  /// Appends convolution, normalisation and ReLU. They read `input`, or the last output if `input` is empty.
  Name conv(const Name& name, std::int64_t out, Extent2 kernel, std::int64_t stride = 1, Extent2 padding = 0,
            const Name& input = {}) {
    const std::int64_t in = channels_.at(input.empty() ? chain_.last() : input);
    chain_.then(name + ".conv",
                conv2d({.in = in,
                        .out = out,
                        .kernel = kernel,
                        .stride = stride,
                        .padding = padding,
                        .bias = false,
                        .init = WeightInit::Normal,
                        .deviation = kDeviation}),
                input);
    chain_.then(name + ".bn", batch_norm2d(out, kInceptionNorm));
    return made(chain_.then(name + ".relu", relu()), out);
  }
  Name pool(const Name& name, LayerPtr layer, const Name& input = {}) {
    const std::int64_t channels = channels_.at(input.empty() ? chain_.last() : input);
    return made(chain_.then(name, std::move(layer), input), channels);
  }
  Name join(const Name& name, const std::vector<Name>& branches) {
    std::int64_t channels = 0;
    for (const Name& branch : branches) channels += channels_.at(branch);
    return made(chain_.join(name, concat(), branches), channels);
  }
  Name pooled_branch(const Name& name, const Name& input, std::int64_t out) {
    const Name mean = pool(name + ".pool", avg_pool2d({.kernel = 3, .stride = 1, .padding = 1}), input);
    return conv(name + ".branch_pool", out, 1, 1, 0, mean);
  }

  void block_a(const Name& name, std::int64_t pooled) {
    const Name x = chain_.last();
    const Name one = conv(name + ".branch1x1", 64, 1, 1, 0, x);
    conv(name + ".branch5x5_1", 48, 1, 1, 0, x);
    const Name five = conv(name + ".branch5x5_2", 64, 5, 1, 2);
    conv(name + ".branch3x3dbl_1", 64, 1, 1, 0, x);
    conv(name + ".branch3x3dbl_2", 96, 3, 1, 1);
    const Name three = conv(name + ".branch3x3dbl_3", 96, 3, 1, 1);
    join(name, {one, five, three, pooled_branch(name, x, pooled)});
  }
  void block_b(const Name& name) {
    const Name x = chain_.last();
    const Name three = conv(name + ".branch3x3", 384, 3, 2, 0, x);
    conv(name + ".branch3x3dbl_1", 64, 1, 1, 0, x);
    conv(name + ".branch3x3dbl_2", 96, 3, 1, 1);
    const Name twice = conv(name + ".branch3x3dbl_3", 96, 3, 2);
    join(name, {three, twice, pool(name + ".pool", max_pool2d(3, 2), x)});
  }
  void block_c(const Name& name, std::int64_t c) {
    const Extent2 wide{1, 7}, wide_padding{0, 3}, high{7, 1}, high_padding{3, 0};
    const Name x = chain_.last();
    const Name one = conv(name + ".branch1x1", 192, 1, 1, 0, x);
    conv(name + ".branch7x7_1", c, 1, 1, 0, x);
    conv(name + ".branch7x7_2", c, wide, 1, wide_padding);
    const Name seven = conv(name + ".branch7x7_3", 192, high, 1, high_padding);
    conv(name + ".branch7x7dbl_1", c, 1, 1, 0, x);
    conv(name + ".branch7x7dbl_2", c, high, 1, high_padding);
    conv(name + ".branch7x7dbl_3", c, wide, 1, wide_padding);
    conv(name + ".branch7x7dbl_4", c, high, 1, high_padding);
    const Name twice = conv(name + ".branch7x7dbl_5", 192, wide, 1, wide_padding);
    join(name, {one, seven, twice, pooled_branch(name, x, 192)});
  }
  void block_d(const Name& name) {
    const Name x = chain_.last();
    conv(name + ".branch3x3_1", 192, 1, 1, 0, x);
    const Name three = conv(name + ".branch3x3_2", 320, 3, 2);
    conv(name + ".branch7x7x3_1", 192, 1, 1, 0, x);
    conv(name + ".branch7x7x3_2", 192, {1, 7}, 1, {0, 3});
    conv(name + ".branch7x7x3_3", 192, {7, 1}, 1, {3, 0});
    const Name seven = conv(name + ".branch7x7x3_4", 192, 3, 2);
    join(name, {three, seven, pool(name + ".pool", max_pool2d(3, 2), x)});
  }
  void block_e(const Name& name) {
    const Name x = chain_.last();
    const auto both_ways = [&](const Name& branch, const Name& input) {
      const Name wide = conv(branch + "a", 384, {1, 3}, 1, {0, 1}, input);
      const Name high = conv(branch + "b", 384, {3, 1}, 1, {1, 0}, input);
      return join(branch, {wide, high});
    };
    const Name one = conv(name + ".branch1x1", 320, 1, 1, 0, x);
    const Name three = both_ways(name + ".branch3x3_2", conv(name + ".branch3x3_1", 384, 1, 1, 0, x));
    conv(name + ".branch3x3dbl_1", 448, 1, 1, 0, x);
    const Name twice = both_ways(name + ".branch3x3dbl_3", conv(name + ".branch3x3dbl_2", 384, 3, 1, 1));
    join(name, {one, three, twice, pooled_branch(name, x, 192)});
  }

  Chain& chain() { return chain_; }
  std::int64_t channels() const { return channels_.at(chain_.last()); }

 private:
  Name made(const Name& name, std::int64_t channels) {
    channels_[name] = channels;
    return name;
  }
  Chain chain_;
  std::map<Name, std::int64_t> channels_{{"input", 3}};
};

Result<LayeredModel> make_inception_v3(const ModelOptions& options) {
  const int size = or_else(options, "image-size", 299), classes = or_else(options, "classes", 1000);
  const double auxiliary = options.number("aux-weight");
  if (size < kSmallest) return too_small("Inception v3", size, kSmallest);
  if (auxiliary > 0 && size < kSmallestWithAuxiliary) {
    Problem problem = too_small("the auxiliary classifier of Inception v3", size, kSmallestWithAuxiliary);
    problem.hint = "--aux-weight 0 leaves it out";
    return problem;
  }
  LayeredModel model = classifier("inception_v3", {3, size, size}, classes);
  InceptionBuilder b(model);
  b.conv("Conv2d_1a_3x3", 32, 3, 2);
  b.conv("Conv2d_2a_3x3", 32, 3);
  b.conv("Conv2d_2b_3x3", 64, 3, 1, 1);
  b.pool("maxpool1", max_pool2d(3, 2));
  b.conv("Conv2d_3b_1x1", 80, 1);
  b.conv("Conv2d_4a_3x3", 192, 3);
  b.pool("maxpool2", max_pool2d(3, 2));
  b.block_a("Mixed_5b", 32);
  b.block_a("Mixed_5c", 64);
  b.block_a("Mixed_5d", 64);
  b.block_b("Mixed_6a");
  b.block_c("Mixed_6b", 128);
  b.block_c("Mixed_6c", 160);
  b.block_c("Mixed_6d", 160);
  b.block_c("Mixed_6e", 192);
  const Name trunk = b.chain().last();
  if (auxiliary > 0) {
    b.pool("AuxLogits.pool", avg_pool2d({.kernel = 5, .stride = 3}));
    b.conv("AuxLogits.conv0", 128, 1);
    b.conv("AuxLogits.conv1", 768, 5);
    b.chain().then("AuxLogits.avgpool", adaptive_avg_pool2d(1, 1));
    b.chain().then("AuxLogits.flatten", flatten());
    b.chain().then("AuxLogits.fc", linear(768, classes, WeightInit::Normal, kAuxiliaryDeviation));
  }
  b.chain().go_back_to(trunk);
  b.block_d("Mixed_7a");
  b.block_e("Mixed_7b");
  b.block_e("Mixed_7c");
  const std::int64_t features = b.channels();
  b.chain().then("avgpool", adaptive_avg_pool2d(1, 1));
  b.chain().then("dropout", dropout(probability_or_else(options, "dropout", 0.5)));
  b.chain().then("flatten", flatten());
  b.chain().then("fc", linear(features, classes, WeightInit::Normal, kDeviation));
  end_in_cross_entropy(model, options);
  if (auxiliary > 0) {
    model.heads.front().name = "class";
    model.heads.push_back({"aux",
                           smoothed_cross_entropy_head(options.number("label-smoothing")),
                           {"AuxLogits.fc", "target"},
                           auxiliary});
  }
  return model;
}

}  // namespace

std::vector<Model> inception_models() {
  std::vector<ModelOption> options = image_options();
  options.push_back(recorded(number_option(
      "aux-weight", 0.4, {0, 100},
      "Weight of the auxiliary classifier's loss (PipeDream has 1); 0 leaves the classifier out.")));
  return {{{.name = "inception_v3",
            .summary = "Inception v3 with its auxiliary classifier (arXiv 1512.00567); images of 299 pixels.",
            .options = options},
           make_inception_v3}};
}

}  // namespace millrace
