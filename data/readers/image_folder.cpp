// Folders of images: PATH/train/CLASS/*.jpg with PATH/{test,val}/ beside it, PATH/CLASS/*.jpg, and trees
// without labels.
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "data/readers/decode_image.h"
#include "data/readers/image_dataset.h"
#include "data/readers/image_set.h"
#include "runtime/base/byte_order_mark.h"
#include "runtime/base/files.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

bool is_folder(const fs::path& path) {
  std::error_code error;  // a loop of links is an error
  return fs::is_directory(path, error);
}

/// Returns the entries of a folder in the order of their names, as text. Entries that are no data by
/// their names go to `left_out`.
Result<std::vector<fs::directory_entry>> sorted_entries(const fs::path& folder, LeftOut& left_out) {
  std::error_code error;
  std::vector<fs::directory_entry> entries;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    entries.push_back(*at);
  if (error) return Problem{folder.string(), "cannot be read: " + error.message(), "check its permissions"};
  std::ranges::sort(entries, {}, [](const fs::directory_entry& entry) { return entry.path(); });
  std::erase_if(entries, [&](const fs::directory_entry& entry) {
    const std::string_view reason = reason_to_ignore(entry.path().filename().string());
    if (!reason.empty()) left_out.add(reason, entry.path().string());
    return !reason.empty();
  });
  return entries;
}

/// Returns the names of the class folders in ascending order. Other entries go to `left_out`.
Result<std::vector<std::string>> class_names(const fs::path& folder, LeftOut& left_out) {
  const auto entries = sorted_entries(folder, left_out);
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
    } else {
      left_out.add("files beside the class folders", entry.path().string());
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

/// Returns whether the name is that of an image in a format that is not read.
bool is_other_image(const fs::path& path) {
  static constexpr std::string_view kNames[] = {".bmp",  ".gif", ".tif", ".tiff", ".ppm", ".pgm",
                                                ".avif", ".jp2", ".jxl", ".heic", ".tga"};
  std::string extension = path.extension().string();
  std::ranges::transform(extension, extension.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::ranges::find(kNames, extension) != std::end(kNames);
}

enum class FolderLinks { Follow, LeaveOut };

/// Finds the images of a folder and of all folders below it.
class ImageWalk {
 public:
  /// `root` is the folder to walk. Links to it or to a folder around it are left out.
  ImageWalk(const fs::path& root, FolderLinks links, LeftOut& left_out) : links_(links), left_out_(left_out) {
    std::error_code error;
    for (fs::path around : {fs::absolute(root, error).lexically_normal(), fs::canonical(root, error)}) {
      if (!around.has_filename()) around = around.parent_path();  // of "images/" and "."
      while (around.has_relative_path()) {
        around = around.parent_path();
        around_.push_back(id_of(around.string()));
      }
    }
  }

  /// Walks one tree. Problem: a folder that cannot be read.
  Status walk(const std::string& folder) {
    const FolderId id = id_of(folder);
    if (std::ranges::find(around_, id) != around_.end()) {
      left_out_.add("links to a folder around them", folder);
      return Ok{};
    }
    const auto entries = sorted_entries(folder, left_out_);
    if (!entries) return entries.problems();
    around_.push_back(id);
    for (const fs::directory_entry& entry : *entries) {
      const std::string path = entry.path().string();
      std::error_code error;
      if (!entry.is_directory(error)) {
        add_file(folder, entry);
      } else if (links_ == FolderLinks::LeaveOut && entry.is_symlink(error)) {
        left_out_.add("links to folders", path);
      } else if (const Status below = walk(path); !below) {
        return below;
      }
    }
    around_.pop_back();
    return Ok{};
  }

  /// Returns the images by folder, both in ascending order, as text: the order of torchvision's
  /// make_dataset(), which sorts what os.walk() yields.
  const std::map<std::string, std::vector<std::string>>& images() const { return images_; }

 private:
  using FolderId = std::pair<dev_t, ino_t>;

  static FolderId id_of(const std::string& folder) {
    struct stat info {};
    return ::stat(folder.c_str(), &info) == 0 ? FolderId{info.st_dev, info.st_ino} : FolderId{};
  }

  void add_file(const std::string& folder, const fs::directory_entry& entry) {
    std::error_code error;
    const fs::file_type type = entry.status(error).type();
    const std::string path = entry.path().string();
    if (!is_image_name(entry.path()))
      left_out_.add(
          is_other_image(entry.path()) ? "images in formats that are not read" : "files that are not images",
          path);
    else if (type == fs::file_type::regular)
      images_[folder].push_back(path);
    else
      left_out_.add("named like images that are no files", path + " (" + kind_of(type) + ")");
  }

  FolderLinks links_;
  LeftOut& left_out_;
  std::vector<FolderId> around_;  ///< those around the root, and those that are being walked
  std::map<std::string, std::vector<std::string>> images_;
};

/// Returns the folder that holds the training split.
fs::path training_folder(const fs::path& root) {
  return is_folder(root / "train") ? root / "train" : root;
}

/// Returns the folder of the evaluation: the first of test/ and val/ that `fits`, or else the first. The
/// other goes to `left_out`. Without both it is `root`, or empty where `root` has a folder train/.
fs::path evaluation_folder(const fs::path& root, LeftOut& left_out,
                           const std::function<bool(const fs::path&)>& fits) {
  std::vector<fs::path> found;
  for (const char* name : {"test", "val"})
    if (is_folder(root / name)) found.push_back(root / name);
  if (found.empty()) return is_folder(root / "train") ? fs::path() : root;
  std::ranges::stable_partition(found, fits);
  for (std::size_t i = 1; i < found.size(); ++i)
    left_out.add("folders of evaluation beside " + found.front().string(), found[i].string());
  return found.front();
}

/// The images of class folders that lie in folders below these.
struct Below {
  std::int64_t folders = 0, images = 0;
  std::string first;
};

/// Adds the images of a class folder and of all folders below it.
Status add_class(const fs::path& folder, int target, ImageSet& set, Below& below) {
  ImageWalk walk(folder, FolderLinks::Follow, set.left_out);
  if (const Status walked = walk.walk(folder.string()); !walked) return walked.problems();
  for (const auto& [place, images] : walk.images()) {
    if (place != folder.string()) {
      if (below.images == 0) below.first = images.front();
      ++below.folders, below.images += std::ssize(images);
    }
    for (const std::string& image : images) set.items.push_back({.name = image, .target = target});
  }
  return Ok{};
}

/// Lists the images of a split. A training folder must have every class of the set; an evaluation may lack
/// some.
Result<ImageSet> list_split(const fs::path& folder, const std::vector<std::string>& classes, bool train) {
  ImageSet set{.source = folder.string()};
  Problems problems;
  const auto present = class_names(folder, set.left_out);
  if (!present) return present.problems();
  for (const std::string& name : *present) {
    if (!std::ranges::binary_search(classes, name))
      problems.push_back({(folder / name).string(), "is a class that the training set does not have",
                          "its classes are " + some_of(classes) + "; rename or remove the folder"});
  }
  std::vector<std::string> missing;
  Below below;
  for (std::size_t c = 0; c < classes.size(); ++c) {
    const std::size_t before = set.items.size();
    if (std::ranges::binary_search(*present, classes[c])) {
      if (const Status added = add_class(folder / classes[c], static_cast<int>(c), set, below); !added)
        append(problems, added.problems());
    }
    if (before < set.items.size()) continue;
    if (train)
      problems.push_back({(folder / classes[c]).string(),
                          std::string("class folder without ") + kImageNames + " images",
                          "remove the folder or add images"});
    missing.push_back(classes[c]);
  }
  if (set.items.empty() && problems.empty())
    problems.push_back({folder.string(), std::string("has no ") + kImageNames + " images",
                        "add some, or give --no-evaluation"});
  if (classes.size() == 1 && below.folders > 1 && below.images == std::ssize(set.items))
    problems.push_back({folder.string(),
                        "has one class folder, and all of its images lie in " +
                            std::to_string(below.folders) + " folders below it",
                        "if these are the classes, give --data " + (folder / classes.front()).string()});
  if (!problems.empty()) return problems;
  if (!missing.empty())
    set.notes.push_back(folder.string() + " has no images of " + std::to_string(missing.size()) + " of the " +
                        std::to_string(classes.size()) + " classes: " + some_of(missing));
  if (below.images > 0)
    set.notes.push_back(std::to_string(below.images) + " images in folders below class folders (first: " +
                        below.first + ") have the class of the folder above");
  return set;
}

constexpr const char* kAnnotations = "val_annotations.txt";

/// Lists an evaluation of Tiny ImageNet's form: images/ has the files, and kAnnotations a line for each,
/// which begins with the file, a tab and its class.
Result<ImageSet> list_annotated(const fs::path& folder, const std::vector<std::string>& classes) {
  const std::string path = (folder / kAnnotations).string();
  const Result<std::string> text = read_regular_file(path, kGiB);
  if (!text) return text.problems();
  ImageSet set{.source = folder.string()};
  Problems problems;
  std::set<std::string> named;
  std::int64_t number = 0;
  for (std::string line : split(without_mark(*text), '\n')) {
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty()) continue;
    const std::vector<std::string> cells = split(line, '\t');
    const fs::path file = folder / "images" / cells[0];
    const auto found = cells.size() < 2 ? classes.end() : std::ranges::lower_bound(classes, cells[1]);
    std::error_code error;
    if (found == classes.end() || *found != cells[1])
      problems.push_back({path + ":" + std::to_string(number),
                          "'" + escaped(line) + "' has no class of training",
                          "expected a file of images/, a tab and one of " + some_of(classes)});
    else if (!fs::is_regular_file(file, error))
      problems.push_back(
          {path + ":" + std::to_string(number), "there is no file " + escaped(file.string()), {}});
    else if (!named.insert(file.string()).second)
      problems.push_back({path + ":" + std::to_string(number), escaped(cells[0]) + " has a line already",
                          "leave one line for each image"});
    else
      set.items.push_back({.name = file.string(), .target = static_cast<int>(found - classes.begin())});
    if (problems.size() >= kMostListed) break;
  }
  if (set.items.empty() && problems.empty()) problems.push_back({path, "names no image", {}});
  if (!problems.empty()) return problems;
  const auto entries = sorted_entries(folder / "images", set.left_out);
  if (!entries) return entries.problems();
  for (const fs::directory_entry& entry : *entries)
    if (!named.contains(entry.path().string()))
      set.left_out.add(std::string("files without a line in ") + kAnnotations, entry.path().string());
  return set;
}

/// Lists the images of a folder and of all folders below it. It does not follow links to folders.
Result<ImageSet> list_tree(const fs::path& folder) {
  ImageSet set{.source = folder.string()};
  ImageWalk walk(folder, FolderLinks::LeaveOut, set.left_out);
  if (const Status walked = walk.walk(folder.string()); !walked) return walked.problems();
  for (const auto& [place, images] : walk.images())
    for (const std::string& image : images) set.items.push_back({.name = image});
  std::ranges::sort(set.items, {}, &ImageItem::name);
  if (set.items.empty())
    return Problem{folder.string(), std::string("has no ") + kImageNames + " images, its folders neither",
                   "add some, or give --no-evaluation"};
  return set;
}

}  // namespace

Result<std::shared_ptr<const Dataset>> make_image_tree(const DatasetOptions& options) {
  if (!is_folder(options.path))
    return Problem{options.path, "is not a readable folder",
                   "expected " + options.path + "/**/*.{jpg,png}, or these in train/ and test/"};
  const bool train = options.split == DataSplit::Train;
  LeftOut others;
  const fs::path folder = train
                              ? training_folder(options.path)
                              : evaluation_folder(options.path, others, [](const fs::path&) { return true; });
  if (folder.empty()) return std::shared_ptr<const Dataset>();
  Result<ImageSet> set = list_tree(folder);
  if (!set) return set.problems();
  std::ranges::move(others.notes(), std::back_inserter(set->notes));
  return make_image_dataset(*std::move(set),
                            {.size = static_cast<int>(options.fields[0].shape[1]), .train = train});
}

Result<std::shared_ptr<const Dataset>> make_image_files(const std::vector<std::string>& paths, int size,
                                                        bool classifier) {
  ImageSet set{.source = "images"};
  Problems problems;
  for (const std::string& path : paths) {
    if (!is_folder(path)) {
      set.items.push_back({.name = path});
      continue;
    }
    Result<ImageSet> below = list_tree(path);
    if (!below) {
      append(problems, below.problems());
      continue;
    }
    std::ranges::move(below->items, std::back_inserter(set.items));
    std::ranges::move(below->left_out.notes(), std::back_inserter(set.notes));
  }
  if (!problems.empty()) return problems;
  return make_image_dataset(
      std::move(set),
      {.size = size, .train = false, .classifies = classifier, .damaged = DamagedImages::Fail});
}

Result<std::vector<std::string>> read_class_names(const std::string& path) {
  if (is_folder(path)) {
    const fs::path training = training_folder(path);
    LeftOut ignored;
    Result<std::vector<std::string>> names = class_names(training, ignored);
    if (names && names->empty())
      return Problem{training.string(), "has no class folders",
                     "give a data folder, or a file with a name a line"};
    return names;
  }
  const Result<std::string> text = read_regular_file(path, 16 * kMiB);
  if (!text) return text.problems();
  std::vector<std::string> names = split(without_mark(*text), '\n');
  while (!names.empty() && (names.back().empty() || names.back() == "\r")) names.pop_back();
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i].ends_with('\r')) names[i].pop_back();
    if (names[i].empty())
      return Problem{path, "line " + std::to_string(i + 1) + " is empty",
                     "give the name of a class in each line, class 0 first"};
  }
  if (names.empty()) return Problem{path, "is empty", "give the name of a class in each line, class 0 first"};
  return names;
}

Result<ImageSource> open_image_folder(const std::string& path) {
  const std::string hint = "expected " + path + "/train/CLASS/*.jpg or " + path + "/CLASS/*.jpg";
  if (!is_folder(path)) return Problem{path, "is not a readable folder", hint};
  std::error_code unknown;
  for (const fs::path& batches :
       {fs::path(path), fs::path(path) / "cifar-10-batches-py", fs::path(path) / "cifar-100-python"})
    for (const char* pickle : {"data_batch_1", "train"})
      if (fs::is_regular_file(batches / pickle, unknown))
        return Problem{
            batches.string(), "is CIFAR's Python version, of pickles",
            "give the folder of its binary version (cifar-10-binary.tar.gz, cifar-100-binary.tar.gz)"};
  const fs::path training = training_folder(path);
  LeftOut others;
  const auto classes = class_names(training, others);
  if (!classes) return classes.problems();
  if (classes->empty()) return Problem{training.string(), "has no class folders", hint};
  const auto is_annotated = [](const fs::path& folder) {
    std::error_code error;
    return fs::is_regular_file(folder / kAnnotations, error);
  };
  const auto has_a_class = [&](const fs::path& folder) {
    return std::ranges::any_of(*classes, [&](const std::string& name) { return is_folder(folder / name); });
  };
  others = {};
  const fs::path test = evaluation_folder(
      path, others, [&](const fs::path& folder) { return has_a_class(folder) || is_annotated(folder); });
  const bool annotated = !test.empty() && !has_a_class(test) && is_annotated(test);
  return ImageSource{.place = training.string(),
                     .num_classes = static_cast<std::int64_t>(classes->size()),
                     .has_test = !test.empty() && test != training,
                     .evaluates_on_training = test == training,
                     .open = [=, classes = *classes](DataSplit split) -> Result<ImageSet> {
                       const bool train = split == DataSplit::Train;
                       Result<ImageSet> set =
                           train || !annotated
                               ? list_split(train ? training : test, classes, train || test == training)
                               : list_annotated(test, classes);
                       if (set && !train) std::ranges::move(others.notes(), std::back_inserter(set->notes));
                       return set;
                     }};
}

}  // namespace millrace
