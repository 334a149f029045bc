#include "data/readers/image_folder.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <mutex>
#include <set>

#include <ATen/ops/empty.h>

#include "data/readers/jpeg.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/log.h"
#include "runtime/base/random.h"
#include "runtime/checkpoint/hash.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

// torchvision's constants for ImageNet.
constexpr float kMean[] = {0.485f, 0.456f, 0.406f}, kDeviation[] = {0.229f, 0.224f, 0.225f};
constexpr int kSmall = 64;  // up to here images are shifted, not rescaled, in training (as is done for CIFAR)
constexpr int kShift = 4;
constexpr double kMaxDamaged = 0.01;  // of the data set; more is an error, not noise
constexpr int kDamagedAlwaysAllowed = 10;

struct File {
  std::string path;
  int target;
};

/// A rectangle of the source in pixels, and whether it is mirrored.
struct Crop {
  double x = 0, y = 0, width = 0, height = 0;
  bool flip = false;
};

/// Scale 0.08 to 1 of the area, ratio 3/4 to 4/3; ten tries, then the centre (torchvision's
/// RandomResizedCrop).
Crop random_resized_crop(int width, int height, RandomStream& random) {
  const double area = double(width) * height;
  Crop crop;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double target = area * random.uniform(0.08, 1),
                 ratio = std::exp(random.uniform(std::log(3.0 / 4), std::log(4.0 / 3)));
    const double w = std::round(std::sqrt(target * ratio)), h = std::round(std::sqrt(target / ratio));
    if (w < 1 || h < 1 || w > width || h > height) continue;
    crop = {std::floor(random.uniform() * (width - w + 1)), std::floor(random.uniform() * (height - h + 1)),
            w, h, false};
    break;
  }
  if (crop.width == 0) {
    const double side = std::min(width, height);
    crop = {(width - side) / 2, (height - side) / 2, side, side, false};
  }
  crop.flip = random.uniform() < 0.5;
  return crop;
}

/// Weights of a triangle filter as wide as the shrink factor: bilinear with antialiasing.
struct Taps {
  int first = 0;
  std::vector<float> weights;
};

std::vector<Taps> make_taps(double start, double length, int size, int limit) {
  const double scale = length / size, support = std::max(1.0, scale);
  std::vector<Taps> all(static_cast<std::size_t>(size));
  for (int i = 0; i < size; ++i) {
    const double centre = start + (i + 0.5) * scale;
    const int low = std::max(0, static_cast<int>(centre - support + 0.5)),
              high = std::min(limit, static_cast<int>(centre + support + 0.5));
    Taps& taps = all[static_cast<std::size_t>(i)];
    taps.first = std::min(low, limit - 1);
    double sum = 0;
    for (int k = taps.first; k < std::max(high, taps.first + 1); ++k) {
      const double w = std::max(0.0, 1 - std::abs((k + 0.5 - centre) / support));
      taps.weights.push_back(static_cast<float>(w));
      sum += w;
    }
    if (sum == 0) taps.weights.assign(1, 1), sum = 1;
    for (float& w : taps.weights) w = static_cast<float>(w / sum);
  }
  return all;
}

/// Resamples the crop to size x size and normalises: [3, size, size] float32.
at::Tensor resample(const Image& image, const Crop& crop, int size) {
  const auto columns = make_taps(crop.x, crop.width, size, image.width),
             rows = make_taps(crop.y, crop.height, size, image.height);
  const int top = rows.front().first,
            bottom = rows.back().first + static_cast<int>(rows.back().weights.size());
  std::vector<float> lines(static_cast<std::size_t>(bottom - top) * static_cast<std::size_t>(size) * 3);
  float* line = lines.data();
  for (int y = top; y < bottom; ++y) {
    const std::uint8_t* source =
        image.pixels.data() + static_cast<std::size_t>(y) * static_cast<std::size_t>(image.width) * 3;
    for (int x = 0; x < size; ++x, line += 3) {
      const Taps& taps = columns[static_cast<std::size_t>(x)];
      const std::uint8_t* pixel = source + taps.first * 3;
      float r = 0, g = 0, b = 0;
      for (float w : taps.weights) {
        r += w * pixel[0];
        g += w * pixel[1];
        b += w * pixel[2];
        pixel += 3;
      }
      line[0] = r, line[1] = g, line[2] = b;
    }
  }
  at::Tensor result = at::empty({3, size, size}, at::kFloat);
  float* out = result.mutable_data_ptr<float>();
  const std::size_t plane = static_cast<std::size_t>(size) * static_cast<std::size_t>(size);
  for (int y = 0; y < size; ++y) {
    const Taps& taps = rows[static_cast<std::size_t>(y)];
    for (int x = 0; x < size; ++x) {
      float value[3] = {0, 0, 0};
      const float* from =
          lines.data() + (static_cast<std::size_t>(taps.first - top) * static_cast<std::size_t>(size) +
                          static_cast<std::size_t>(x)) *
                             3;
      for (float w : taps.weights) {
        for (int c = 0; c < 3; ++c) value[c] += w * from[c];
        from += size * 3;
      }
      const int column = crop.flip ? size - 1 - x : x;
      for (int c = 0; c < 3; ++c) {
        out[static_cast<std::size_t>(c) * plane +
            static_cast<std::size_t>(y) * static_cast<std::size_t>(size) + static_cast<std::size_t>(column)] =
            (value[c] / 255 - kMean[c]) / kDeviation[c];
      }
    }
  }
  return result;
}

/// A small training image: shifted by up to 4 pixels (zeros move in) and mirrored at random.
at::Tensor shifted(const at::Tensor& image, RandomStream& random) {
  const int dx = static_cast<int>(random.below(2 * kShift + 1)) - kShift,
            dy = static_cast<int>(random.below(2 * kShift + 1)) - kShift;
  const std::int64_t size = image.size(1);
  at::Tensor result = at::empty(image.sizes(), at::kFloat).zero_();
  const std::int64_t width = size - std::abs(dx), height = size - std::abs(dy);
  result.narrow(1, std::max(0, -dy), height)
      .narrow(2, std::max(0, -dx), width)
      .copy_(image.narrow(1, std::max(0, dy), height).narrow(2, std::max(0, dx), width));
  return result;
}

class ImageFolder final : public Dataset {
 public:
  ImageFolder(std::string root, std::vector<File> files, int classes, int size, bool train)
      : root_(std::move(root)), files_(std::move(files)), classes_(classes), size_(size), train_(train) {}

  std::int64_t size() const override { return static_cast<std::int64_t>(files_.size()); }
  int num_classes() const override { return classes_; }
  std::string fingerprint() const override {
    Xxh3 listing;
    for (const File& file : files_) {
      listing.add(fs::path(file.path).lexically_relative(root_).generic_string());
      listing.add("\n" + std::to_string(file.target) + "\n");
    }
    return std::to_string(files_.size()) + " images, " + std::to_string(classes_) + " classes, listing " +
           listing.value().hex().substr(0, 16);
  }
  std::string describe() const override {
    return root_ + ", " + std::to_string(files_.size()) + " images, " + std::to_string(classes_) + " classes";
  }
  std::map<std::string, std::int64_t> counters() const override {
    return {{"grey", grey_}, {"cmyk", cmyk_}, {"damaged", damaged_}};
  }

  Sample get(std::int64_t index, std::uint64_t augment_seed, bool want_input) const override {
    const File& file = files_[static_cast<std::size_t>(index)];
    if (!want_input) return {{}, file.target};
    RandomStream random(augment_seed);
    // A damaged image is replaced by the next whole one; the label stays the file's own, because the rank
    // that computes the loss does not decode and must agree.
    for (std::size_t step = 0; step < files_.size(); ++step) {
      const std::size_t at = (static_cast<std::size_t>(index) + step) % files_.size();
      Image image;
      if (decode(files_[at].path, image)) return {transform(image, random), file.target};
    }
    throw DataError(root_ + ": not one image could be decoded");
  }

 private:
  bool decode(const std::string& path, Image& image) const {
    Result<std::string> bytes = read_file(path, 512 * kMiB);
    std::string error;
    if (!bytes)
      error = to_string(bytes.problems());
    else if (decode_jpeg(*bytes, train_ ? 0 : size_ * 8 / 7, image, error)) {
      if (image.kind == JpegKind::Grey) ++grey_;
      if (image.kind == JpegKind::Cmyk) ++cmyk_;
      return true;
    }
    note_damage(path, error);
    return false;
  }

  void note_damage(const std::string& path, const std::string& error) const {
    std::lock_guard lock(mutex_);
    if (!seen_damaged_.insert(path).second) return;
    damaged_ = static_cast<std::int64_t>(seen_damaged_.size());
    log_warning("damaged image replaced: " + path + ": " + error);
    if (damaged_ > kDamagedAlwaysAllowed && double(damaged_) > kMaxDamaged * double(files_.size())) {
      throw DataError(path + ": " + error + " (" + std::to_string(damaged_) + " of " +
                          std::to_string(files_.size()) + " images are damaged, more than 1 %)",
                      "repair or remove the files named above");
    }
  }

  at::Tensor transform(const Image& image, RandomStream& random) const {
    if (train_ && size_ > kSmall)
      return resample(image, random_resized_crop(image.width, image.height, random), size_);
    Crop crop;
    const double side = std::min(image.width, image.height);
    // Evaluation of large images: shorter side to 8/7 of the size, then the centre.
    const double kept = size_ > kSmall ? side * 7 / 8 : side;
    crop = {(image.width - kept) / 2, (image.height - kept) / 2, kept, kept, false};
    if (!train_) return resample(image, crop, size_);
    crop.flip = random.uniform() < 0.5;
    return shifted(resample(image, crop, size_), random);
  }

  std::string root_;
  std::vector<File> files_;
  int classes_;
  int size_;
  bool train_;
  mutable std::mutex mutex_;  // guards seen_damaged_
  mutable std::set<std::string> seen_damaged_;
  mutable std::atomic<std::int64_t> grey_{0}, cmyk_{0}, damaged_{0};
};

bool is_jpeg_name(const fs::path& path) {
  std::string extension = path.extension().string();
  std::ranges::transform(extension, extension.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return extension == ".jpg" || extension == ".jpeg";
}

std::vector<fs::path> sorted_entries(const fs::path& folder, bool folders, std::error_code& error) {
  std::vector<fs::path> result;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.is_directory() == folders && entry.path().filename().string()[0] != '.')
      result.push_back(entry.path());
  }
  std::ranges::sort(result);
  return result;
}

/// The folder that holds the classes of a split.
fs::path split_folder(const DatasetOptions& options) {
  const fs::path root = options.path;
  for (const std::string& name : options.split == "train" ? std::vector<std::string>{"train"}
                                                          : std::vector<std::string>{"test", "val"}) {
    if (fs::is_directory(root / name)) return root / name;
  }
  return root;
}

}  // namespace

Result<std::shared_ptr<const Dataset>> make_image_folder(const DatasetOptions& options) {
  const std::string hint =
      "expected " + options.path + "/train/CLASS/*.jpg or " + options.path + "/CLASS/*.jpg";
  std::error_code error;
  if (!fs::is_directory(options.path, error)) return Problem{options.path, "is not a readable folder", hint};
  const auto& shape = options.sample_shape;
  if (shape.size() != 3 || shape[0] != 3 || shape[1] != shape[2])
    return Problem{options.path, "the model does not take images", "use --data synthetic for this model"};
  const fs::path folder = split_folder(options);
  if (folder == fs::path(options.path) && fs::is_directory(folder / "train"))
    return Problem{options.path, "has no test or val folder", "add one, or give --no-evaluation"};
  Problems problems;
  std::vector<File> files;
  const auto classes = sorted_entries(folder, /*folders=*/true, error);
  if (error) return Problem{folder.string(), "cannot be read: " + error.message(), "check its permissions"};
  for (std::size_t c = 0; c < classes.size(); ++c) {
    const std::size_t before = files.size();
    for (const fs::path& file : sorted_entries(classes[c], false, error)) {
      if (is_jpeg_name(file)) files.push_back({file.string(), static_cast<int>(c)});
    }
    if (error)
      problems.push_back(
          {classes[c].string(), "cannot be read: " + error.message(), "check its permissions"});
    else if (files.size() == before)
      problems.push_back(
          {classes[c].string(), "class folder without .jpg images", "remove the folder or add images"});
  }
  if (classes.empty()) problems.push_back({folder.string(), "has no class folders", hint});
  if (static_cast<int>(classes.size()) > options.num_classes) {
    problems.push_back({folder.string(),
                        "has " + std::to_string(classes.size()) + " classes, the model " +
                            std::to_string(options.num_classes),
                        "give --classes " + std::to_string(classes.size())});
  }
  if (!problems.empty()) return problems;
  return std::shared_ptr<const Dataset>(
      std::make_shared<ImageFolder>(folder.string(), std::move(files), static_cast<int>(classes.size()),
                                    static_cast<int>(shape[1]), options.split == "train"));
}

}  // namespace millrace
