// Folders of images: PATH/train/CLASS/*.jpg with PATH/{test,val}/ beside it, PATH/CLASS/*.jpg, and trees
// without labels.
#include <algorithm>
#include <filesystem>
#include <iterator>

#include "data/readers/decode_image.h"
#include "data/readers/image_dataset.h"
#include "data/readers/image_set.h"
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

/// Adds the images of one folder. An entry that has an image's name but is no file is left out, and its name
/// goes to `no_files`.
void add_images(const std::vector<fs::directory_entry>& entries, int target, ImageSet& set,
                std::vector<std::string>& no_files) {
  for (const fs::directory_entry& entry : entries) {
    if (!is_image_name(entry.path())) continue;
    std::error_code error;
    const fs::file_type type = entry.status(error).type();
    if (type == fs::file_type::regular) {
      set.items.push_back({.name = entry.path().string(), .target = target});
    } else if (type != fs::file_type::directory) {
      no_files.push_back(entry.path().string() + " (" + kind_of(type) + ")");
    }
  }
}

void note_left_out(ImageSet& set, const std::vector<std::string>& no_files) {
  set.left_out = static_cast<std::int64_t>(no_files.size());
  if (!no_files.empty())
    set.notes.push_back("left out " + std::to_string(no_files.size()) +
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
Result<ImageSet> list_split(const fs::path& folder, const std::vector<std::string>& classes, bool train) {
  ImageSet set{.source = folder.string()};
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
    const std::size_t before = set.items.size();
    if (std::ranges::binary_search(*present, classes[c])) {
      if (const auto entries = sorted_entries(folder / classes[c]))
        add_images(*entries, static_cast<int>(c), set, no_files);
      else
        append(problems, entries.problems());
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
  if (!problems.empty()) return problems;
  if (!missing.empty())
    set.notes.push_back(folder.string() + " has no images of " + std::to_string(missing.size()) + " of the " +
                        std::to_string(classes.size()) + " classes: " + some_of(missing));
  note_left_out(set, no_files);
  return set;
}

/// Lists the images of a folder and of all folders below it. It does not follow links to folders.
Result<ImageSet> list_tree(const fs::path& folder) {
  ImageSet set{.source = folder.string()};
  std::vector<std::string> no_files;
  std::vector<fs::path> folders{folder};
  for (std::size_t i = 0; i < folders.size(); ++i) {
    const auto entries = sorted_entries(folders[i]);
    if (!entries) return entries.problems();
    add_images(*entries, 0, set, no_files);
    for (const fs::directory_entry& entry : *entries) {
      std::error_code error;
      if (entry.is_directory(error) && !entry.is_symlink(error)) folders.push_back(entry.path());
    }
  }
  std::ranges::sort(set.items, {}, &ImageItem::name);
  if (set.items.empty())
    return Problem{folder.string(), std::string("has no ") + kImageNames + " images, its folders neither",
                   "add some, or give --no-evaluation"};
  note_left_out(set, no_files);
  return set;
}

}  // namespace

Result<std::shared_ptr<const Dataset>> make_image_tree(const DatasetOptions& options) {
  if (!is_folder(options.path))
    return Problem{options.path, "is not a readable folder",
                   "expected " + options.path + "/**/*.{jpg,png}, or these in train/ and test/"};
  const bool train = options.split == DataSplit::Train;
  const fs::path folder = split_folder(options.path, train);
  if (folder.empty()) return std::shared_ptr<const Dataset>();
  Result<ImageSet> set = list_tree(folder);
  if (!set) return set.problems();
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
    std::ranges::move(below->notes, std::back_inserter(set.notes));
  }
  if (!problems.empty()) return problems;
  return make_image_dataset(
      std::move(set),
      {.size = size, .train = false, .classifies = classifier, .damaged = DamagedImages::Fail});
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
  const fs::path training = split_folder(path, true), test = split_folder(path, false);
  const auto classes = class_names(training);
  if (!classes) return classes.problems();
  if (classes->empty()) return Problem{training.string(), "has no class folders", hint};
  return ImageSource{.place = training.string(),
                     .num_classes = static_cast<std::int64_t>(classes->size()),
                     .has_test = !test.empty() && test != training,
                     .evaluates_on_training = test == training,
                     .open = [=, classes = *classes](DataSplit split) {
                       const bool train = split == DataSplit::Train;
                       return list_split(train ? training : test, classes, train || test == training);
                     }};
}

}  // namespace millrace
