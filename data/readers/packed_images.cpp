// Images packed into few files: CIFAR's binary version, and the IDX files of MNIST and its relatives.
#include <algorithm>
#include <filesystem>
#include <optional>

#include "data/files/gzip.h"
#include "data/readers/image_set.h"
#include "runtime/base/files.h"
#include "runtime/saved/hash.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

constexpr Bytes kMostFileBytes = 8 * kGiB;

/// Images of one size in memory, one after the other.
struct PackedImages {
  int height = 0, width = 0;
  bool grey = false;   ///< one byte for a pixel; else three planes: red, green, blue
  std::string planes;  ///< of all images
  std::size_t bytes_of_image() const {
    return static_cast<std::size_t>(height) * static_cast<std::size_t>(width) * (grey ? 1 : 3);
  }

  void read(std::int64_t index, RgbImage& image) const {
    const std::size_t pixels = static_cast<std::size_t>(height) * static_cast<std::size_t>(width);
    const char* from = planes.data() + static_cast<std::size_t>(index) * bytes_of_image();
    image = {.width = width, .height = height, .held = {0, 0, width, height}};
    image.pixels.resize(3 * pixels);
    for (std::size_t i = 0; i < pixels; ++i) {
      for (std::size_t c = 0; c < 3; ++c)
        image.pixels[3 * i + c] = static_cast<std::uint8_t>(from[(grey ? 0 : c * pixels) + i]);
    }
  }
};

ImageSet set_of(const std::string& folder, std::vector<ImageItem> items, PackedImages packed) {
  ImageSet set{.source = folder, .items = std::move(items)};
  set.pixels = xxh3(packed.planes.data(), packed.planes.size()).hex().substr(0, 16);
  set.read = [images = std::make_shared<const PackedImages>(std::move(packed))](
                 const ImageItem& item, RgbImage& image, std::string&, const RegionOf&) {
    images->read(item.record, image);
    return true;
  };
  return set;
}

// ---- CIFAR: records of one or two labels and 3 x 32 x 32 bytes ----

struct CifarForm {
  std::string name;
  std::vector<std::string> train, test;  ///< names of the files
  int labels = 1;                        ///< bytes before the pixels
  int label = 0;                         ///< the one that is the class
  int classes = 10;
};

/// Returns the form of the folder's files. CIFAR-100 has two labels; the model's classes choose one.
std::optional<CifarForm> cifar_form(const fs::path& folder, std::int64_t classes) {
  std::error_code error;
  if (fs::exists(folder / "data_batch_1.bin", error)) {
    CifarForm form{.name = "CIFAR-10", .test = {"test_batch.bin"}};
    for (int i = 1; i <= 5; ++i) form.train.push_back("data_batch_" + std::to_string(i) + ".bin");
    return form;
  }
  if (!fs::exists(folder / "train.bin", error) || !fs::exists(folder / "fine_label_names.txt", error))
    return std::nullopt;
  const bool coarse = classes == 20;
  return CifarForm{.name = "CIFAR-100",
                   .train = {"train.bin"},
                   .test = {"test.bin"},
                   .labels = 2,
                   .label = coarse ? 0 : 1,
                   .classes = coarse ? 20 : 100};
}

Result<ImageSet> read_cifar(const fs::path& folder, const CifarForm& form, DataSplit split) {
  PackedImages packed{.height = 32, .width = 32};
  std::vector<ImageItem> items;
  Problems problems;
  const std::size_t pixels = packed.bytes_of_image(), record = pixels + static_cast<std::size_t>(form.labels);
  for (const std::string& name : split == DataSplit::Train ? form.train : form.test) {
    const std::string path = (folder / name).string();
    const Result<std::string> bytes = read_regular_file(path, kMostFileBytes);
    if (!bytes) {
      append(problems, bytes.problems());
      continue;
    }
    if (bytes->empty() || bytes->size() % record != 0) {
      problems.push_back({path,
                          "has " + std::to_string(bytes->size()) + " bytes, which are no whole records of " +
                              std::to_string(record) + " bytes",
                          "the file is cut off, or not of " + form.name + "'s binary version"});
      continue;
    }
    for (std::size_t at = 0, i = 0; at < bytes->size(); at += record, ++i) {
      const int target = static_cast<unsigned char>((*bytes)[at + static_cast<std::size_t>(form.label)]);
      if (target >= form.classes) {
        problems.push_back({path + ":" + std::to_string(i),
                            "has the label " + std::to_string(target) + ", " + form.name +
                                " has labels 0 to " + std::to_string(form.classes - 1),
                            "the file is damaged"});
        break;
      }
      items.push_back({path + ":" + std::to_string(i), target, static_cast<std::int64_t>(items.size())});
      packed.planes.append(*bytes, at + static_cast<std::size_t>(form.labels), pixels);
    }
  }
  if (!problems.empty()) return problems;
  return set_of(folder.string(), std::move(items), std::move(packed));
}

// ---- IDX: MNIST, Fashion-MNIST, KMNIST, EMNIST ----

/// Returns the path of a file of the split, however it is named; empty: there is none.
fs::path idx_path(const fs::path& folder, DataSplit split, const std::string& what) {
  std::error_code error;
  for (const char* prefix : {"train", "t10k", "test"}) {
    if ((split == DataSplit::Train) != (std::string_view(prefix) == "train")) continue;
    for (const char* separator : {"-", "."}) {
      for (const char* packed : {"", ".gz"}) {
        const fs::path path = folder / (std::string(prefix) + "-" + what + separator + "idx" +
                                        (what == "images" ? "3" : "1") + "-ubyte" + packed);
        if (fs::exists(path, error)) return path;
      }
    }
  }
  return {};
}

/// Reads an array of bytes of `dimensions` dimensions: magic number, sizes (big-endian), values.
Result<std::string> read_idx(const fs::path& path, std::vector<std::int64_t>& sizes, std::size_t dimensions) {
  Result<std::string> bytes = read_unpacked_file(path, kMostFileBytes);
  if (!bytes) return bytes;
  const std::size_t header = 4 + 4 * dimensions;
  const std::string expected{'\0', '\0', '\x08', static_cast<char>(dimensions)};
  if (bytes->size() < header || !bytes->starts_with(expected))
    return Problem{path.string(),
                   "is no IDX file of bytes with " + std::to_string(dimensions) + " dimensions",
                   "expected MNIST's own files, plain or gzip"};
  std::size_t values = 1;
  for (std::size_t d = 0; d < dimensions; ++d) {
    std::int64_t size = 0;
    for (std::size_t i = 0; i < 4; ++i)
      size = size << 8 | static_cast<unsigned char>((*bytes)[4 + 4 * d + i]);
    sizes.push_back(size);
    const auto most = static_cast<std::size_t>(kMostFileBytes);
    if (size == 0 || static_cast<std::size_t>(size) > most / values)
      return Problem{path.string(), "has a size of " + std::to_string(size), "the file is damaged"};
    values *= static_cast<std::size_t>(size);
  }
  if (bytes->size() != header + values)
    return Problem{path.string(),
                   "has " + std::to_string(bytes->size() - header) + " bytes of values, its header says " +
                       std::to_string(values),
                   "the file is cut off or damaged: copy it again"};
  bytes->erase(0, header);
  return bytes;
}

struct IdxPaths {
  fs::path images, labels;
};
IdxPaths idx_paths(const fs::path& folder, DataSplit split) {
  return {idx_path(folder, split, "images"), idx_path(folder, split, "labels")};
}

Result<std::string> read_idx_labels(const fs::path& path) {
  std::vector<std::int64_t> sizes;
  return read_idx(path, sizes, 1);
}

Result<ImageSet> read_idx_set(const fs::path& folder, const IdxPaths& paths, std::int64_t classes) {
  std::vector<std::int64_t> sizes;
  Result<std::string> images = read_idx(paths.images, sizes, 3), labels = read_idx_labels(paths.labels);
  Problems problems;
  if (!images) append(problems, images.problems());
  if (!labels) append(problems, labels.problems());
  if (!problems.empty()) return problems;
  if (sizes[0] != static_cast<std::int64_t>(labels->size()))
    return Problem{paths.labels.string(),
                   "has " + std::to_string(labels->size()) + " labels for the " + std::to_string(sizes[0]) +
                       " images of " + paths.images.string(),
                   "take both files of one set"};
  constexpr std::int64_t kMostSide = 65'536;
  if (sizes[1] > kMostSide || sizes[2] > kMostSide)
    return Problem{paths.images.string(), "has images of more than 65,536 pixels a side",
                   "the file is damaged"};
  std::vector<ImageItem> items;
  for (std::size_t i = 0; i < labels->size(); ++i) {
    const int target = static_cast<unsigned char>((*labels)[i]);
    const std::string name = paths.images.string() + ":" + std::to_string(i);
    if (target >= classes)
      return Problem{paths.labels.string() + ":" + std::to_string(i),
                     "is the label " + std::to_string(target) + ", which the training set does not have",
                     "its labels are 0 to " + std::to_string(classes - 1)};
    items.push_back({name, target, static_cast<std::int64_t>(i)});
  }
  return set_of(folder.string(), std::move(items),
                {.height = static_cast<int>(sizes[1]),
                 .width = static_cast<int>(sizes[2]),
                 .grey = true,
                 .planes = *std::move(images)});
}

Result<ImageSource> open_idx(const fs::path& folder) {
  const IdxPaths train = idx_paths(folder, DataSplit::Train), test = idx_paths(folder, DataSplit::Test);
  Problems problems;
  for (const auto& [paths, name] : {std::pair{train, "train"}, {test, "t10k"}}) {
    if (paths.images.empty() != paths.labels.empty() || (&paths == &train && paths.images.empty()))
      problems.push_back({folder.string(),
                          std::string("has no ") + name + (paths.images.empty() ? "-images" : "-labels") +
                              " file beside the other",
                          "images and labels go together"});
  }
  if (!problems.empty()) return problems;
  const Result<std::string> labels = read_idx_labels(train.labels);
  if (!labels) return labels.problems();
  const auto most =
      std::ranges::max_element(*labels, {}, [](char c) { return static_cast<unsigned char>(c); });
  const std::int64_t classes = static_cast<unsigned char>(*most) + 1;
  return ImageSource{.place = train.labels.string(),
                     .num_classes = classes,
                     .has_test = !test.images.empty(),
                     .augments = false,
                     .open = [=](DataSplit split) {
                       return read_idx_set(folder, split == DataSplit::Train ? train : test, classes);
                     }};
}

}  // namespace

std::optional<Result<ImageSource>> open_packed_images(const std::string& path, std::int64_t classes) {
  const fs::path folder = path;
  if (const auto form = cifar_form(folder, classes)) {
    std::error_code error;
    return ImageSource{.place = path,
                       .num_classes = form->classes,
                       .has_test = fs::exists(folder / form->test.front(), error),
                       .open = [=](DataSplit split) { return read_cifar(folder, *form, split); }};
  }
  if (idx_path(folder, DataSplit::Train, "images").empty() &&
      idx_path(folder, DataSplit::Train, "labels").empty())
    return std::nullopt;
  return open_idx(folder);
}

}  // namespace millrace
