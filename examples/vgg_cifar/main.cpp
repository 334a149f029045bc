// VGG-11 with batch norm for CIFAR-10, on the data set's own binary files (data_batch_1.bin ...
// test_batch.bin).
//   vgg_cifar train --model vgg11_cifar --data cifar10:cifar-10-batches-bin --microbatch 32 --epochs 20
//       --stages 2 --lr 0.05 --lr-policy cosine --momentum 0.9
#include <millrace/millrace.h>

#include <ATen/ops/flip.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace {

using namespace millrace;

constexpr std::int64_t kSide = 32, kPixels = 3 * kSide * kSide, kRecord = 1 + kPixels;

Result<LayeredModel> make_vgg(const ModelOptions& options) {
  LayeredModel model = classifier("vgg11_cifar", {3, kSide, kSide}, 10);
  Chain chain(model);
  std::int64_t channels = 3, place = 0;
  for (const std::int64_t width : {64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0}) {  // 0: pool
    const auto name = [&place] { return "features." + std::to_string(place++); };
    if (width == 0) {
      chain.then(name(), max_pool2d(2, 2));
      continue;
    }
    chain.then(name(),
               conv2d({.in = channels, .out = width, .padding = 1, .init = WeightInit::KaimingFanOut}));
    chain.then(name(), batch_norm2d(width));
    chain.then(name(), relu());
    channels = width;
  }
  chain.then("flatten", flatten());
  chain.then("dropout", dropout(options.number("drop")));
  chain.then("classifier", linear(channels, 10));
  end_in_cross_entropy(model);
  return model;
}

/// Records of a label and 3 x 32 x 32 bytes. Training images are flipped, half of them.
class Cifar10 final : public Dataset {
 public:
  Cifar10(std::string bytes, std::string folder) : bytes_(std::move(bytes)), folder_(std::move(folder)) {}
  std::int64_t size() const override { return static_cast<std::int64_t>(bytes_.size()) / kRecord; }
  int num_classes() const override { return 10; }
  std::string describe() const override { return folder_ + ", " + std::to_string(size()) + " images"; }
  std::string fingerprint() const override {
    return "cifar10 " + std::to_string(std::hash<std::string>{}(bytes_));
  }
  Sample get(std::int64_t index, std::uint64_t augment_seed, Wanted wanted) const override {
    const char* record = bytes_.data() + index * kRecord;
    Sample sample(2);
    if (wanted[0]) {
      const at::Tensor pixels = at::from_blob(const_cast<char*>(record + 1), {3, kSide, kSide}, at::kByte);
      sample[0].tensor = pixels.to(at::kFloat).sub_(120).div_(64);
      if (augment_seed % 2 == 1) sample[0].tensor = sample[0].tensor.flip(2);
    }
    sample[1].number = static_cast<unsigned char>(record[0]);
    return sample;
  }

 private:
  std::string bytes_, folder_;
};

Result<std::shared_ptr<const Dataset>> open_cifar10(const DatasetOptions& options) {
  namespace fs = std::filesystem;
  const std::string folder = options.path.substr(std::min(options.path.size(), sizeof "cifar10:" - 1));
  const std::string prefix = options.split == DataSplit::Train ? "data_batch" : "test_batch";
  std::error_code error;
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error))
    if (entry.path().filename().string().starts_with(prefix)) files.push_back(entry.path());
  if (files.empty())
    return Problem{folder, "has no " + prefix + "*.bin",
                   "--data cifar10:FOLDER of CIFAR-10's binary version"};
  std::sort(files.begin(), files.end());
  std::string bytes;
  for (const fs::path& file : files) {
    std::ifstream in(file, std::ios::binary);
    bytes.append(std::istreambuf_iterator<char>(in), {});
  }
  bool whole = !bytes.empty() && bytes.size() % kRecord == 0;
  for (std::size_t at = 0; whole && at < bytes.size(); at += kRecord)
    whole = bytes[at] >= 0 && bytes[at] < 10;
  if (!whole) return Problem{folder, "its files are not records of a label below 10 and 3072 bytes", {}};
  return std::shared_ptr<const Dataset>(std::make_shared<Cifar10>(std::move(bytes), folder));
}

}  // namespace

int main(int argc, char** argv) {
  const Model vgg{{.name = "vgg11_cifar",
                   .summary = "VGG-11 with batch norm for 32-pixel images.",
                   .options = {number_option("drop", 0.5, {0, 1}, "Dropout before the classifier.", "P")}},
                  make_vgg};
  return run_program(argc, argv, {.models = {vgg}, .datasets = {{"cifar10", open_cifar10}}});
}
