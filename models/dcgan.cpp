// DCGAN (arXiv 1511.06434) as in HFTA's and PyTorch's examples: a generator and a discriminator, updated one
// after the other. Names below "generator." and "discriminator." are those of the examples' two state_dicts.
#include "models/model.h"
#include "runtime/layers/adversarial_layers.h"
#include "runtime/layers/repeated_layer.h"
#include "runtime/layers/transposed_convolution.h"
#include "runtime/model/turns.h"

namespace millrace {
namespace {

constexpr double kConvolutionDeviation = 0.02, kNormDeviation = 0.02, kSlope = 0.2;
constexpr int kSmallestImage = 16;
const std::string kGenerator = "generator.main.", kDiscriminator = "discriminator.main.";

/// Numbers a network's layers as nn.Sequential does.
class Numbered {
 public:
  explicit Numbered(std::string prefix) : prefix_(std::move(prefix)) {}
  std::string next() { return prefix_ + std::to_string(number_++); }

 private:
  std::string prefix_;
  int number_ = 0;
};

/// Returns ConvOptions or ConvTransposeOptions with the values that all convolutions here share.
template <typename Options>
Options convolution(std::int64_t in, std::int64_t out, std::int64_t stride, std::int64_t padding) {
  return {.in = in,
          .out = out,
          .kernel = 4,
          .stride = stride,
          .padding = padding,
          .bias = false,
          .init = WeightInit::Normal,
          .deviation = kConvolutionDeviation};
}

LayerPtr norm(std::int64_t channels) {
  return batch_norm2d(channels, {.weight_deviation = kNormDeviation});
}

/// Adds the generator: [B, latent, 1, 1] -> [B, 3, size, size]. It has `widest` channels at 4 x 4, and half
/// as many at each doubled size.
void add_generator(LayeredModel& model, std::int64_t latent, std::int64_t features, int size) {
  Chain chain(model);
  Numbered name(kGenerator);
  chain.then("noise", normal_noise({latent, 1, 1}));
  const auto enlarge = [&](std::int64_t in, std::int64_t out, std::int64_t stride, std::int64_t padding) {
    chain.then(name.next(), conv_transpose2d(convolution<ConvTransposeOptions>(in, out, stride, padding)));
  };
  std::int64_t channels = features * size / 8;
  enlarge(latent, channels, 1, 0);
  for (int side = 4; side < size; side *= 2) {
    chain.then(name.next(), norm(channels));
    chain.then(name.next(), relu());
    const std::int64_t next = side * 2 == size ? 3 : channels / 2;
    enlarge(channels, next, 2, 1);
    channels = next;
  }
  chain.then(name.next(), tanh_layer());
}

/// Adds the discriminator, [B, 3, size, size] -> [B, 1, 1, 1]. It gives scores for real images first, then
/// for generated ones.
void add_discriminator(LayeredModel& model, std::int64_t features, int size) {
  Numbered name(kDiscriminator);
  std::string real = "input", fake = model.layers.back().name;
  const auto then = [&](LayerPtr layer) {
    const std::string layer_name = name.next();
    model.layers.push_back({layer_name,
                            repeated(std::move(layer), 2),
                            {real, fake},
                            {layer_name + ".real", layer_name + ".fake"}});
    real = layer_name + ".real";
    fake = layer_name + ".fake";
  };
  const auto shrink = [&](std::int64_t in, std::int64_t out, std::int64_t stride, std::int64_t padding) {
    then(conv2d(convolution<ConvOptions>(in, out, stride, padding)));
  };
  std::int64_t channels = features;
  shrink(3, channels, 2, 1);
  then(leaky_relu(kSlope));
  for (int side = size / 2; side > 4; side /= 2) {
    shrink(channels, 2 * channels, 2, 1);
    channels *= 2;
    then(norm(channels));
    then(leaky_relu(kSlope));
  }
  shrink(channels, 1, 1, 0);
  model.heads = {{"errD", adversarial_head({{1, "D_x"}, {0, "D_G_z1"}}), {real, fake}},
                 {"errG", adversarial_head({{1, "D_G_z2"}}), {fake}}};
}

Result<LayeredModel> make_dcgan(const ModelOptions& options) {
  const int size = or_else(options, "image-size", 64);
  if (size < kSmallestImage || (size & (size - 1)) != 0)
    return Problem{"--image-size",
                   "dcgan makes images of a power of two of at least " + std::to_string(kSmallestImage) +
                       " pixels, not of " + std::to_string(size),
                   "give 16, 32, 64 or 128"};
  LayeredModel model{.name = "dcgan", .fields = {{.name = "input", .shape = {3, size, size}}}};
  add_generator(model, options.integer("latent"), options.integer("generator-features"), size);
  add_discriminator(model, options.integer("discriminator-features"), size);
  // The generator's turn uses the updated discriminator and the same noise. Its batches count once.
  add_turn(model, {.name = "discriminator",
                   .heads = {"errD"},
                   .trains = kDiscriminator,
                   .keeps_statistics = {kGenerator}});
  add_turn(model, {.name = "generator", .heads = {"errG"}, .trains = kGenerator});
  return model;
}

}  // namespace

std::vector<Model> dcgan_models() {
  return {{{.name = "dcgan",
            .summary = "DCGAN: generator and discriminator, updated in turn (arXiv 1511.06434).",
            .options = {image_size_option(),
                        integer_option("latent", 100, {1, 1 << 16}, "Numbers that an image is made of."),
                        integer_option("generator-features", 64, {1, 4096},
                                       "Channels of the generator before its last layer."),
                        integer_option("discriminator-features", 64, {1, 4096},
                                       "Channels of the discriminator's first layer.")}},
           make_dcgan}};
}

}  // namespace millrace
