// UNET3D of MLPerf's image segmentation (arXiv 1606.06650, 1809.10486); names and shapes as in the reference.
// Encoder and decoder of a level meet in a concatenation: a skip from each level to its mirror.
#include "models/model.h"
#include "runtime/layers/dice_cross_entropy.h"
#include "runtime/layers/transposed_convolution.h"

namespace millrace {
namespace {

constexpr std::int64_t kMostWidening = 10;  ///< channels of the deepest levels, in those of the first
constexpr int kDefaultCrop = 128, kKidneyClasses = 3;

class UnetBuilder {
 public:
  explicit UnetBuilder(LayeredModel& model) : chain_(model) {}

  /// Appends convolution, instance normalisation and ReLU.
  void unit(const std::string& name, std::int64_t in, std::int64_t out, std::int64_t stride) {
    chain_.then(name + ".0", conv3d({.in = in, .out = out, .stride = stride, .padding = 1, .bias = false}));
    chain_.then(name + ".1", instance_norm(out, {.affine = true}));
    chain_.then(name + ".2", relu());
  }
  /// Appends two units; the first one has the stride. Returns the name of the output.
  std::string block(const std::string& name, std::int64_t in, std::int64_t out, std::int64_t stride) {
    unit(name + ".conv1", in, out, stride);
    unit(name + ".conv2", out, out, 1);
    return chain_.last();
  }
  /// Appends a level of the decoder: doubles the sides, joins the skip, then a block.
  void up(const std::string& name, std::int64_t in, std::int64_t out, const std::string& skip) {
    const std::string above = chain_.then(name + ".upsample_conv.0",
                                          conv_transpose3d({.in = in, .out = out, .kernel = 2, .stride = 2}));
    chain_.join(name + ".concat", concat(), {above, skip});
    block(name, 2 * out, out, 1);
  }
  Chain& chain() { return chain_; }

 private:
  Chain chain_;
};

/// Returns a Problem about a crop that cannot be halved `levels` times, or ends in a single voxel.
Problem crop_problem(int size, std::int64_t levels) {
  const std::int64_t step = std::int64_t{1} << levels;
  return {"--image-size",
          "unet3d halves crops " + std::to_string(levels) + " times, which " + std::to_string(size) +
              " voxels do not allow",
          "give a multiple of " + std::to_string(step) + ", at least " + std::to_string(2 * step)};
}

Result<LayeredModel> make_unet3d(const ModelOptions& options) {
  const int size = or_else(options, "image-size", kDefaultCrop),
            classes = or_else(options, "classes", kKidneyClasses);
  const std::int64_t filters = options.integer("filters"), levels = options.integer("levels");
  const std::int64_t step = std::int64_t{1} << levels;
  if (size % step != 0 || size < 2 * step) return crop_problem(size, levels);
  if (classes < 2 || classes > 255)
    return Problem{"--classes", std::to_string(classes) + " classes, the background among them",
                   "give 2 to 255"};
  constexpr auto kVolumes = SampleForm::Volumes;
  LayeredModel model{.name = "unet3d",
                     .fields = {{.name = "input", .shape = {1, size, size, size}, .form = kVolumes},
                                {.name = "target",
                                 .shape = {1, size, size, size},
                                 .dtype = at::kByte,
                                 .limit = classes,
                                 .form = kVolumes},
                                {.name = "window",
                                 .shape = {kVolumeWindowNumbers},
                                 .dtype = at::kLong,
                                 .limit = std::int64_t{1} << 40,
                                 .form = kVolumes}}};
  const auto channels = [&](std::int64_t level) {
    return filters * std::min(std::int64_t{1} << level, kMostWidening);
  };
  UnetBuilder builder(model);
  std::vector<std::string> skips{builder.block("input_block", 1, filters, 1)};
  for (std::int64_t level = 1; level < levels; ++level)
    skips.push_back(
        builder.block("downsample." + std::to_string(level - 1), channels(level - 1), channels(level), 2));
  builder.block("bottleneck", channels(levels - 1), channels(levels), 2);
  for (std::int64_t level = levels - 1; level >= 0; --level)
    builder.up("upsample." + std::to_string(levels - 1 - level), channels(level + 1), channels(level),
               skips[static_cast<std::size_t>(level)]);
  builder.chain().then("output.conv", conv3d({.in = filters, .out = classes, .kernel = 1}));
  model.heads = {{"loss", dice_cross_entropy_head(classes), {builder.chain().last(), "target", "window"}}};
  return model;
}

}  // namespace

std::vector<Model> unet3d_models() {
  return {{{.name = "unet3d",
            .summary = "UNET3D: labels for the voxels of volumes, as in MLPerf (arXiv 1606.06650).",
            .options = {classes_option(), image_size_option(),
                        integer_option("filters", 32, {1, 4096},
                                       "Channels of the first level; deeper ones have 2, 4, 8 and 10 times "
                                       "as many."),
                        integer_option("levels", 5, {1, 7}, "How often a volume's sides are halved.")}},
           make_unet3d}};
}

}  // namespace millrace
