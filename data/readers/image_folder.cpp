#include "data/readers/image_folder.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <iterator>

#include <ATen/ops/empty.h>

#include "data/files/images.h"
#include "data/readers/jpeg.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/log.h"
#include "runtime/base/random.h"
#include "runtime/base/text.h"
#include "runtime/saved/hash.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

struct Normalisation {
  float mean[3], deviation[3];
};
// torchvision's constants for ImageNet, and constants that put values into [-1, 1], the range of a
// generator's tanh.
constexpr Normalisation kImageNet{{0.485f, 0.456f, 0.406f}, {0.229f, 0.224f, 0.225f}},
    kSymmetric{{0.5f, 0.5f, 0.5f}, {0.5f, 0.5f, 0.5f}};
constexpr int kSmall = 64;  // training shifts images up to this size instead of rescaling them (as for CIFAR)
constexpr int kShift = 4;
constexpr double kMaxDamaged = 0.01;  // share of the data set; more damaged images are an error
constexpr int kDamagedAlwaysAllowed = 10;

struct File {
  std::string path;
  int target;
};

/// The images of a split, sorted by class and name.
struct Listing {
  std::string folder;
  std::vector<File> files;
  std::vector<std::int64_t> first;  ///< index of each class's first file; one more entry for the end
  std::int64_t left_out = 0;
  std::vector<std::string> notes;
};

std::string lower_extension(const fs::path& path) {
  std::string extension = path.extension().string();
  std::ranges::transform(extension, extension.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return extension;
}
bool is_jpeg_name(const fs::path& path) {
  const std::string extension = lower_extension(path);
  return extension == ".jpg" || extension == ".jpeg";
}
bool is_png_name(const fs::path& path) {
  return lower_extension(path) == ".png";
}

/// Decodes a PNG within the limits for JPEGs. Returns false for anything else; then `error` has the reason.
bool decode_png_as_rgb(const std::string& bytes, RgbImage& image, std::string& error) {
  const Result<Image> png = decode_png(bytes, "PNG");
  if (!png || png->width * png->height > JpegLimits{}.pixels) {
    error = png ? "more than 64 megapixels" : to_string(png.problems());
    return false;
  }
  image = {.width = static_cast<int>(png->width),
           .height = static_cast<int>(png->height),
           .kind = png->channels == 1 ? JpegKind::Grey : JpegKind::Rgb};
  if (image.kind == JpegKind::Rgb) {
    image.pixels.assign(png->pixels.begin(), png->pixels.end());
    return true;
  }
  image.pixels.reserve(3 * png->pixels.size());
  for (const char value : png->pixels)
    image.pixels.insert(image.pixels.end(), 3, static_cast<std::uint8_t>(value));
  return true;
}

/// A rectangle of the source image in pixels; `flip` mirrors it.
struct Crop {
  double x = 0, y = 0, width = 0, height = 0;
  bool flip = false;
};

/// Draws a crop as torchvision's RandomResizedCrop does: 0.08 to 1 of the area, with a ratio of 3/4 to 4/3.
/// If ten tries do not fit, it returns the centre.
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

/// Weights of a triangle filter as wide as the shrink factor: bilinear resampling with antialiasing.
struct Taps {
  int first = 0;
  std::vector<float> weights;
};

std::vector<Taps> make_taps(double start, double length, int size, int limit) {
  const double scale = length / size, support = std::max(1.0, scale);
  std::vector<Taps> all(size);
  for (int i = 0; i < size; ++i) {
    const double centre = start + (i + 0.5) * scale;
    const int low = std::max(0, static_cast<int>(centre - support + 0.5)),
              high = std::min(limit, static_cast<int>(centre + support + 0.5));
    Taps& taps = all[i];
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
at::Tensor resample(const RgbImage& image, const Crop& crop, int size,
                    const Normalisation& normal = kImageNet) {
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
      const Taps& taps = columns[x];
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
    const Taps& taps = rows[y];
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
            (value[c] / 255 - normal.mean[c]) / normal.deviation[c];
      }
    }
  }
  return result;
}

/// Returns a small training image, shifted by up to 4 pixels and mirrored at random. Zeros move in.
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

/// The way in which a file becomes a sample.
struct Preparation {
  int size = 0;
  bool train = true;             ///< a classifier's images are augmented
  bool labelled = true;          ///< the label follows the image
  bool classifier = true;        ///< images as a classifier reads them, else as a generator makes them
  bool replaces_damaged = true;  ///< another image takes the place of a damaged one, else it is an error
};

class ImageFolder final : public Dataset {
 public:
  ImageFolder(Listing listing, const Preparation& preparation)
      : listing_(std::move(listing)),
        size_(preparation.size),
        train_(preparation.train),
        labelled_(preparation.labelled),
        classifier_(preparation.classifier),
        replaces_damaged_(preparation.replaces_damaged),
        oddity_(listing_.files.size()) {}

  std::int64_t size() const override { return static_cast<std::int64_t>(listing_.files.size()); }
  int num_classes() const override { return labelled_ ? static_cast<int>(listing_.first.size()) - 1 : 0; }
  std::string fingerprint() const override {
    Xxh3 listing;
    for (const File& file : listing_.files) {
      listing.add(fs::path(file.path).lexically_relative(listing_.folder).generic_string());
      listing.add("\n");
      listing.add(std::to_string(file.target));
      listing.add("\n");
    }
    return contents() + ", listing " + listing.value().hex().substr(0, 16);
  }
  std::string describe() const override { return listing_.folder + ", " + contents(); }
  std::vector<std::string> notes() const override { return listing_.notes; }
  std::int64_t left_out() const override { return listing_.left_out; }
  std::string name_of(std::int64_t index) const override { return file(index).path; }
  std::map<std::int64_t, unsigned> odd_samples() const override {
    std::map<std::int64_t, unsigned> odd;
    for (std::size_t i = 0; i < oddity_.size(); ++i) {
      if (const unsigned bits = oddity_[i].load())
        odd.emplace_hint(odd.end(), static_cast<std::int64_t>(i), bits);
    }
    return odd;
  }

  Sample get(std::int64_t index, std::uint64_t augment_seed, Wanted wanted) const override {
    const std::int64_t target = file(index).target;
    if (!wanted[0]) return sample({}, target);
    RandomStream random(augment_seed);
    // The next whole image of its class replaces a damaged one, or the next of the set if the class has none.
    // The label stays the file's own in any case. The rank that computes the loss does not decode images, and
    // must have the same label.
    const std::int64_t begin = listing_.first[target],
                       end = listing_.first[static_cast<std::size_t>(target) + 1];
    RgbImage image;
    for (std::int64_t step = 0; step < end - begin; ++step) {
      if (decode(begin + (index - begin + step) % (end - begin), image))
        return sample(transform(image, random), target);
    }
    for (std::int64_t step = end - index; step < size(); ++step) {
      if (decode((index + step) % size(), image)) return sample(transform(image, random), target);
    }
    throw DataError(listing_.folder + ": not one image could be decoded");
  }

 private:
  std::string contents() const {
    return std::to_string(size()) + " images" +
           (labelled_ ? ", " + std::to_string(num_classes()) + " classes" : "");
  }
  Sample sample(at::Tensor image, std::int64_t target) const {
    Sample made{{.tensor = std::move(image)}};
    if (labelled_) made.push_back({.number = target});
    return made;
  }
  const File& file(std::int64_t index) const { return listing_.files[index]; }

  bool decode(std::int64_t index, RgbImage& image) const {
    const Result<std::string> bytes = read_regular_file(file(index).path, 512 * kMiB);
    std::string error;
    if (!bytes)
      error = to_string(bytes.problems());
    else if (is_png_name(file(index).path) ? decode_png_as_rgb(*bytes, image, error)
                                           : decode_jpeg(*bytes, image, error)) {
      if (image.kind == JpegKind::Grey) note(index, kGreySample);
      if (image.kind == JpegKind::Cmyk) note(index, kCmykSample);
      return true;
    }
    if (!replaces_damaged_) throw DataError(file(index).path + ": " + error, "repair it or leave it out");
    if (note(index, kDamagedSample)) report_damage(file(index).path, error);
    return false;
  }

  /// Sets a bit of OddSample. Returns true the first time.
  bool note(std::int64_t index, unsigned bit) const {
    return !(oddity_[index].fetch_or(static_cast<std::uint8_t>(bit)) & bit);
  }

  void report_damage(const std::string& path, const std::string& error) const {
    const std::int64_t damaged = ++damaged_;
    log_warning("damaged image replaced: " + path + ": " + error);
    if (damaged > kDamagedAlwaysAllowed && double(damaged) > kMaxDamaged * double(size())) {
      throw DataError(path + ": " + error + " (" + std::to_string(damaged) + " of " + std::to_string(size()) +
                          " images are damaged, more than 1 %)",
                      "repair or remove the files named above");
    }
  }

  at::Tensor transform(const RgbImage& image, RandomStream& random) const {
    if (!classifier_) {
      const double side = std::min(image.width, image.height);
      return resample(image, {(image.width - side) / 2, (image.height - side) / 2, side, side, false}, size_,
                      kSymmetric);
    }
    if (train_ && size_ > kSmall)
      return resample(image, random_resized_crop(image.width, image.height, random), size_);
    Crop crop;
    const double side = std::min(image.width, image.height);
    // For evaluation, a large image's shorter side becomes 8/7 of the size. Then the centre is cut out.
    const double kept = size_ > kSmall ? side * 7 / 8 : side;
    crop = {(image.width - kept) / 2, (image.height - kept) / 2, kept, kept, false};
    if (!train_) return resample(image, crop, size_);
    crop.flip = random.uniform() < 0.5;
    return shifted(resample(image, crop, size_), random);
  }

  Listing listing_;
  int size_;
  bool train_, labelled_, classifier_, replaces_damaged_;
  mutable std::vector<std::atomic<std::uint8_t>> oddity_;  // indexed by sample: bits of OddSample
  mutable std::atomic<std::int64_t> damaged_{0};
};

// ---- what is in the folders ----

bool is_folder(const fs::path& path) {
  std::error_code error;  // a loop of links is an error
  return fs::is_directory(path, error);
}

bool is_hidden(const fs::path& path) {
  return path.filename().string().starts_with('.');
}

/// Returns the entries of a folder in the order of their names, without hidden ones.
Result<std::vector<fs::directory_entry>> sorted_entries(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::directory_entry> entries;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (!is_hidden(at->path())) entries.push_back(*at);
  }
  if (error) return Problem{folder.string(), "cannot be read: " + error.message(), "check its permissions"};
  std::ranges::sort(entries, {}, [](const fs::directory_entry& entry) { return entry.path(); });
  return entries;
}

/// Returns the names of the class folders in ascending order.
Result<std::vector<std::string>> class_names(const fs::path& folder) {
  const auto entries = sorted_entries(folder);
  if (!entries) return entries.problems();
  std::vector<std::string> names;
  Problems problems;
  for (const fs::directory_entry& entry : *entries) {
    std::error_code error;
    if (entry.is_directory(error)) {
      names.push_back(entry.path().filename().string());
    } else if (error || !entry.exists(error)) {
      // Without this class, all classes after it would get other numbers.
      problems.push_back({entry.path().string(), "is a link that leads to nothing", "mend or remove it"});
    }
  }
  if (!problems.empty()) return problems;
  return names;
}

std::string kind_of(fs::file_type type) {
  switch (type) {
    case fs::file_type::fifo:
      return "a FIFO";
    case fs::file_type::socket:
      return "a socket";
    case fs::file_type::block:
    case fs::file_type::character:
      return "a device";
    default:
      return "a link that leads to nothing";
  }
}

bool is_image_name(const fs::path& path) {
  return is_jpeg_name(path) || is_png_name(path);
}

/// Adds the images of one folder whose names `takes` accepts. An entry that has such a name but is no file is
/// left out, and its name goes to `no_files`.
void add_images(const std::vector<fs::directory_entry>& entries, bool (*takes)(const fs::path&), int target,
                Listing& listing, std::vector<std::string>& no_files) {
  for (const fs::directory_entry& entry : entries) {
    if (!takes(entry.path())) continue;
    std::error_code error;
    const fs::file_type type = entry.status(error).type();
    if (type == fs::file_type::regular) {
      listing.files.push_back({entry.path().string(), target});
    } else if (type != fs::file_type::directory) {
      no_files.push_back(entry.path().string() + " (" + kind_of(type) + ")");
    }
  }
}

/// Returns a text such as "a, b, c, d, e and 7 more".
std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 5;
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, names.size()); ++i) text += (i ? ", " : "") + names[i];
  return text + (names.size() > kShown ? " and " + std::to_string(names.size() - kShown) + " more" : "");
}

void note_left_out(Listing& listing, const std::vector<std::string>& no_files) {
  listing.left_out = static_cast<std::int64_t>(no_files.size());
  if (!no_files.empty())
    listing.notes.push_back("left out " + std::to_string(no_files.size()) +
                            " named like images that are no files: " + some_of(no_files));
}

/// Returns the folder that holds the classes of a split; empty: there is none.
fs::path split_folder(const fs::path& root, bool train) {
  if (train) return is_folder(root / "train") ? root / "train" : root;
  for (const char* name : {"test", "val"}) {
    if (is_folder(root / name)) return root / name;
  }
  return is_folder(root / "train") ? fs::path() : root;
}

/// Lists the images of a split. A training folder must have every class of the set; an evaluation may lack
/// some.
Result<Listing> list_split(const fs::path& folder, const std::vector<std::string>& classes, bool train) {
  Listing listing{.folder = folder.string()};
  Problems problems;
  const auto present = class_names(folder);
  if (!present) return present.problems();
  for (const std::string& name : *present) {
    if (!std::ranges::binary_search(classes, name))
      problems.push_back({(folder / name).string(), "is a class that the training set does not have",
                          "its classes are " + some_of(classes) + "; rename or remove the folder"});
  }
  std::vector<std::string> no_files, missing;
  for (std::size_t c = 0; c < classes.size(); ++c) {
    listing.first.push_back(static_cast<std::int64_t>(listing.files.size()));
    if (std::ranges::binary_search(*present, classes[c])) {
      if (const auto entries = sorted_entries(folder / classes[c]))
        add_images(*entries, is_jpeg_name, static_cast<int>(c), listing, no_files);
      else
        append(problems, entries.problems());
    }
    if (listing.first.back() < static_cast<std::int64_t>(listing.files.size())) continue;
    if (train)
      problems.push_back({(folder / classes[c]).string(), "class folder without .jpg images",
                          "remove the folder or add images"});
    missing.push_back(classes[c]);
  }
  listing.first.push_back(static_cast<std::int64_t>(listing.files.size()));
  if (listing.files.empty() && problems.empty())
    problems.push_back({folder.string(), "has no .jpg images", "add some, or give --no-evaluation"});
  if (!problems.empty()) return problems;
  if (!missing.empty())
    listing.notes.push_back(folder.string() + " has no images of " + std::to_string(missing.size()) +
                            " of the " + std::to_string(classes.size()) + " classes: " + some_of(missing));
  note_left_out(listing, no_files);
  return listing;
}

/// Lists the images of a folder and of all folders below it. It does not follow links to folders.
Result<Listing> list_tree(const fs::path& folder) {
  Listing listing{.folder = folder.string(), .first = {0}};
  std::vector<std::string> no_files;
  std::vector<fs::path> folders{folder};
  for (std::size_t i = 0; i < folders.size(); ++i) {
    const auto entries = sorted_entries(folders[i]);
    if (!entries) return entries.problems();
    add_images(*entries, is_image_name, 0, listing, no_files);
    for (const fs::directory_entry& entry : *entries) {
      std::error_code error;
      if (entry.is_directory(error) && !entry.is_symlink(error)) folders.push_back(entry.path());
    }
  }
  std::ranges::sort(listing.files, {}, &File::path);
  listing.first.push_back(static_cast<std::int64_t>(listing.files.size()));
  if (listing.files.empty())
    return Problem{folder.string(), "has no .jpg, .jpeg or .png images, its folders neither",
                   "add some, or give --no-evaluation"};
  note_left_out(listing, no_files);
  return listing;
}

}  // namespace

Result<std::shared_ptr<const Dataset>> make_image_tree(const DatasetOptions& options) {
  if (!is_folder(options.path))
    return Problem{options.path, "is not a readable folder",
                   "expected " + options.path + "/**/*.{jpg,png}, or these in train/ and test/"};
  const bool train = options.split == DataSplit::Train;
  const fs::path folder = split_folder(options.path, train);
  if (folder.empty()) return std::shared_ptr<const Dataset>();
  Result<Listing> listing = list_tree(folder);
  if (!listing) return listing.problems();
  return std::shared_ptr<const Dataset>(std::make_shared<ImageFolder>(
      *std::move(listing), Preparation{.size = static_cast<int>(options.fields[0].shape[1]),
                                       .train = train,
                                       .labelled = false,
                                       .classifier = false}));
}

Result<std::shared_ptr<const Dataset>> make_image_files(const std::vector<std::string>& paths, int size,
                                                        bool classifier) {
  Listing listing{.folder = "images", .first = {0}};
  Problems problems;
  for (const std::string& path : paths) {
    if (is_folder(path)) {
      Result<Listing> below = list_tree(path);
      if (!below) {
        append(problems, below.problems());
        continue;
      }
      std::ranges::move(below->files, std::back_inserter(listing.files));
      std::ranges::move(below->notes, std::back_inserter(listing.notes));
    } else {
      listing.files.push_back({path, 0});
    }
  }
  if (!problems.empty()) return problems;
  listing.first.push_back(static_cast<std::int64_t>(listing.files.size()));
  return std::shared_ptr<const Dataset>(
      std::make_shared<ImageFolder>(std::move(listing), Preparation{.size = size,
                                                                    .train = false,
                                                                    .labelled = false,
                                                                    .classifier = classifier,
                                                                    .replaces_damaged = false}));
}

Result<std::vector<std::string>> read_class_names(const std::string& path) {
  if (is_folder(path)) {
    const fs::path training = split_folder(path, true);
    Result<std::vector<std::string>> names = class_names(training);
    if (names && names->empty())
      return Problem{training.string(), "has no class folders",
                     "give a data folder, or a file with a name a line"};
    return names;
  }
  const Result<std::string> text = read_regular_file(path, 16 * kMiB);
  if (!text) return text.problems();
  std::vector<std::string> names = split(*text, '\n');
  if (names.back().empty()) names.pop_back();
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i].ends_with('\r')) names[i].pop_back();
    if (names[i].empty())
      return Problem{path, "line " + std::to_string(i + 1) + " is empty",
                     "give the name of a class in each line, class 0 first"};
  }
  if (names.empty()) return Problem{path, "is empty", "give the name of a class in each line, class 0 first"};
  return names;
}

Result<std::shared_ptr<const Dataset>> make_image_folder(const DatasetOptions& options) {
  const std::string hint =
      "expected " + options.path + "/train/CLASS/*.jpg or " + options.path + "/CLASS/*.jpg";
  if (!is_folder(options.path)) return Problem{options.path, "is not a readable folder", hint};
  const Shape& shape = options.fields[0].shape;
  const std::int64_t num_classes = options.fields[1].limit;
  if (shape.size() != 3 || shape[0] != 3 || shape[1] != shape[2])
    return Problem{options.path, "the model does not take images", "use --data synthetic for this model"};
  const bool train = options.split == DataSplit::Train;
  const fs::path folder = split_folder(options.path, train), training = split_folder(options.path, true);
  if (folder.empty()) return std::shared_ptr<const Dataset>();
  const auto classes = class_names(training);
  if (!classes) return classes.problems();
  if (classes->empty()) return Problem{training.string(), "has no class folders", hint};
  Result<Listing> listing = list_split(folder, *classes, folder == training);
  Problems problems = listing ? Problems{} : listing.problems();
  if (static_cast<std::int64_t>(classes->size()) > num_classes) {
    problems.push_back(
        {training.string(),
         "has " + std::to_string(classes->size()) + " classes, the model " + std::to_string(num_classes),
         "give --classes " + std::to_string(classes->size())});
  }
  if (!problems.empty()) return problems;
  return std::shared_ptr<const Dataset>(std::make_shared<ImageFolder>(
      *std::move(listing), Preparation{.size = static_cast<int>(shape[1]), .train = train}));
}

}  // namespace millrace
