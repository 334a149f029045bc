// A convolutional autoencoder of images. Its unpooling puts values back to the places at which its pooling
// found them (stacked what-where autoencoders, arXiv 1506.02351; SegNet's decoder, arXiv 1511.00561).
#include "models/model.h"

namespace millrace {
namespace {

PaddingMode padding_mode(const std::string& name) {
  return name == "reflect"     ? PaddingMode::Reflect
         : name == "replicate" ? PaddingMode::Replicate
         : name == "circular"  ? PaddingMode::Circular
                               : PaddingMode::Zeros;
}

class AutoencoderBuilder {
 public:
  AutoencoderBuilder(LayeredModel& model, const ModelOptions& options)
      : chain_(model), options_(options), dilation_(options.integer("dilation")) {}

  void encode(int size) {
    std::int64_t channels = kColours;
    for (std::int64_t i = 0; i < options_.integer("depth"); ++i) {
      const std::string name = "encoder." + std::to_string(i) + ".";
      const std::int64_t out = options_.integer("width") << i;
      block(name, channels, out);
      chain_.then(name + "dropout", dropout2d(probability_or_else(options_, "dropout", 0)));
      const std::string made = chain_.last();
      const std::string where = chain_.then(name + "indices", max_pool2d_indices(2, 2));
      chain_.then(name + "pool", max_pool2d(2, 2), made);
      pooled_.push_back({channels, out, size, where});
      channels = out;
      size /= 2;
    }
  }
  void decode() {
    for (; !pooled_.empty(); pooled_.pop_back()) {
      const Pooled& of = pooled_.back();
      const std::string name = "decoder." + std::to_string(pooled_.size() - 1) + ".";
      chain_.join(name + "unpool", max_unpool2d(of.size, of.size), {chain_.last(), of.where});
      if (pooled_.size() > 1)
        block(name, of.out, of.in);
      else
        chain_.then(name + "conv", convolution(of.out, of.in, /*bias=*/true));
    }
  }

 private:
  static constexpr std::int64_t kColours = 3;
  struct Pooled {
    std::int64_t in, out;  ///< channels
    int size;              ///< height and width before the pooling
    std::string where;
  };

  LayerPtr convolution(std::int64_t in, std::int64_t out, bool bias) const {
    return conv2d({.in = in,
                   .out = out,
                   .padding = dilation_,
                   .bias = bias,
                   .dilation = dilation_,
                   .padding_mode = padding_mode(options_.text("padding"))});
  }
  void block(const std::string& name, std::int64_t in, std::int64_t out) {
    chain_.then(name + "conv", convolution(in, out, /*bias=*/false));
    chain_.then(name + "norm", norm_of(options_, out));
    chain_.then(name + "activation", options_.text("activation") == "prelu" ? prelu(out) : relu());
  }

  Chain chain_;
  const ModelOptions& options_;
  std::int64_t dilation_;
  std::vector<Pooled> pooled_;
};

Result<LayeredModel> make_autoencoder(const ModelOptions& options) {
  const int size = or_else(options, "image-size", 32);
  // At this size two pixels are left to normalise over and to pool, and reflected padding has enough
  // pixels.
  const std::int64_t least = std::max<std::int64_t>(2, options.integer("dilation") + 1)
                             << (options.integer("depth") - 1);
  if (size < least) return too_small("autoencoder", size, static_cast<int>(least));
  LayeredModel model{.name = "autoencoder", .fields = {{.name = "input", .shape = {3, size, size}}}};
  AutoencoderBuilder builder(model, options);
  builder.encode(size);
  builder.decode();
  model.heads = {{"loss", mean_squared_error_head(), {model.layers.back().name, "input"}}};
  return model;
}

}  // namespace

std::vector<Model> autoencoder_models() {
  return {
      {{.name = "autoencoder",
        .summary = "Convolutional autoencoder of images that unpools where it pooled (arXiv 1506.02351).",
        .options = {image_size_option(),
                    integer_option("depth", 3, {1, 8}, "Convolutions of the encoder, a pooling after each."),
                    integer_option("width", 16, {1, 4096}, "Channels of the first convolution."),
                    norm_option(),
                    choice_option("activation", "relu", {"relu", "prelu"},
                                  "Of the blocks; prelu has a learned slope for each channel."),
                    recorded(choice_option("padding", "zeros", {"zeros", "reflect", "replicate", "circular"},
                                           "What convolutions read beyond an edge.")),
                    recorded(integer_option("dilation", 1, {1, 64},
                                            "Pixels from one element of a kernel to the next.")),
                    dropout_option()}},
       make_autoencoder}};
}

}  // namespace millrace
