// ResNet-18 and ResNet-50 (arXiv 1512.03385; stride in the 3x3 convolution as torchvision has it).
#include "models/chain.h"
#include "models/models.h"

namespace millrace {
namespace {

class Builder {
 public:
  explicit Builder(LayeredModel& model) : chain_(model) {}

  std::string conv_norm(const std::string& conv_name, const std::string& norm_name, ConvOptions options,
                        const std::string& input = {}) {
    options.bias = false;
    options.init = WeightInit::KaimingFanOut;
    const std::int64_t out = options.out;
    chain_.then(conv_name, conv2d(options), input);
    return chain_.then(norm_name, batch_norm2d(out));
  }

  /// Two 3x3 convolutions, or 1x1 - 3x3 - 1x1 (`bottleneck`); the input is added to the result.
  void block(const std::string& name, std::int64_t width, std::int64_t stride, bool bottleneck) {
    const std::string input = chain_.last();
    const std::int64_t in = channels_, out = bottleneck ? 4 * width : width;
    if (bottleneck) {
      conv_norm(name + ".conv1", name + ".bn1", {.in = in, .out = width, .kernel = 1});
      chain_.then(name + ".relu1", relu());
      conv_norm(name + ".conv2", name + ".bn2",
                {.in = width, .out = width, .kernel = 3, .stride = stride, .padding = 1});
      chain_.then(name + ".relu2", relu());
      conv_norm(name + ".conv3", name + ".bn3", {.in = width, .out = out, .kernel = 1});
    } else {
      conv_norm(name + ".conv1", name + ".bn1",
                {.in = in, .out = width, .kernel = 3, .stride = stride, .padding = 1});
      chain_.then(name + ".relu1", relu());
      conv_norm(name + ".conv2", name + ".bn2", {.in = width, .out = out, .kernel = 3, .padding = 1});
    }
    const std::string main = chain_.last();
    const bool reshapes = stride != 1 || in != out;
    const std::string skip = reshapes
                                 ? conv_norm(name + ".downsample.0", name + ".downsample.1",
                                             {.in = in, .out = out, .kernel = 1, .stride = stride}, input)
                                 : input;
    chain_.join(name + ".add", add(), main, skip);
    chain_.then(name + ".relu", relu());
    channels_ = out;
  }

  Chain& chain() { return chain_; }
  void set_channels(std::int64_t channels) { channels_ = channels; }
  std::int64_t channels() const { return channels_; }

 private:
  Chain chain_;
  std::int64_t channels_ = 64;
};

}  // namespace

Result<LayeredModel> make_resnet(const std::string& name, const ModelOptions& options) {
  const bool bottleneck = name == "resnet50";
  const int size = options.image_size ? options.image_size : 224;
  if (size < 32)
    return Problem{"--image-size", name + " needs at least 32 pixels, got " + std::to_string(size),
                   "use 32 or 224"};
  const bool small = size <= 64;  // CIFAR: 3x3 stem without pooling
  const int classes = options.num_classes ? options.num_classes : (small ? 10 : 1000);
  LayeredModel model = classifier(name, {3, size, size}, classes);
  Builder b(model);
  if (small)
    b.conv_norm("conv1", "bn1", {.in = 3, .out = 64, .kernel = 3, .padding = 1});
  else
    b.conv_norm("conv1", "bn1", {.in = 3, .out = 64, .kernel = 7, .stride = 2, .padding = 3});
  b.chain().then("relu", relu());
  if (!small) b.chain().then("maxpool", max_pool2d(3, 2, 1));
  const int blocks18[] = {2, 2, 2, 2}, blocks50[] = {3, 4, 6, 3};
  for (int group = 0; group < 4; ++group) {
    const int blocks = bottleneck ? blocks50[group] : blocks18[group];
    for (int i = 0; i < blocks; ++i) {
      b.block("layer" + std::to_string(group + 1) + "." + std::to_string(i), 64 << group,
              group > 0 && i == 0 ? 2 : 1, bottleneck);
    }
  }
  b.chain().then("avgpool", adaptive_avg_pool2d(1, 1));
  b.chain().then("flatten", flatten());
  if (options.dropout > 0) b.chain().then("dropout", dropout(options.dropout));
  b.chain().then("fc", linear(b.channels(), classes));
  end_in_cross_entropy(model);
  return model;
}

}  // namespace millrace
