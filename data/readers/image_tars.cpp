// WebDataset: images and their labels in tar archives, KEY.jpg beside KEY.cls.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <memory>
#include <span>
#include <utility>

#include "data/files/tar.h"
#include "data/readers/decode_image.h"
#include "data/readers/image_set.h"
#include "runtime/base/numbers.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

/// The archives of a split, and where each image is. Archives are opened for each read: there may be more of
/// them than a process may have open.
struct Tars {
  std::vector<std::string> paths;
  struct Place {
    std::size_t archive;  ///< in paths
    TarMember member;
  };
  std::vector<Place> places;
};

/// Returns the archives that "FOLDER" (all *.tar) or "PREFIX{000..012}SUFFIX" names, in their order.
Result<std::vector<std::string>> archives_of(const std::string& text) {
  std::vector<std::string> paths;
  const std::size_t open = text.find('{'), dots = text.find("..", open), close = text.find('}', dots);
  if (close != std::string::npos) {
    const std::string first = text.substr(open + 1, dots - open - 1),
                      last = text.substr(dots + 2, close - dots - 2);
    const auto from = number_of<std::int64_t>(first), to = number_of<std::int64_t>(last);
    if (!from || !to || *from < 0 || *to < *from || *to - *from > 1'000'000)
      return Problem{text, "has no range of numbers in its braces", "for example train-{0000..0146}.tar"};
    for (std::int64_t k = *from; k <= *to; ++k) {
      std::string number = std::to_string(k);
      if (number.size() < first.size()) number.insert(0, first.size() - number.size(), '0');
      paths.push_back(text.substr(0, open) + number + text.substr(close + 1));
    }
    return paths;
  }
  std::error_code error;
  if (!fs::is_directory(text, error)) return std::vector{text};
  for (fs::directory_iterator at(text, error), end; !error && at != end; at.increment(error))
    if (at->path().extension() == ".tar") paths.push_back(at->path().string());
  if (error) return Problem{text, "cannot be read: " + error.message(), {}};
  if (paths.empty()) return Problem{text, "has no .tar archives", "name the folder that holds them"};
  std::ranges::sort(paths);
  return paths;
}

/// The files of one sample: they follow each other and have a name in common up to the first dot behind the
/// last slash.
std::string key_of(const std::string& name) {
  const std::size_t slash = name.rfind('/'), begin = slash == std::string::npos ? 0 : slash + 1;
  return name.substr(0, name.find('.', begin));
}

class Indexer {
 public:
  explicit Indexer(ImageSet& set) : set_(set) {}

  Problems add(const std::string& path) {
    const auto members = list_tar(path);
    if (!members) return members.problems();
    const std::size_t before = set_.items.size();
    path_ = path;
    tars_->paths.push_back(path);
    for (std::size_t first = 0, end = 0; first < members->size(); first = end) {
      const std::string key = key_of((*members)[first].name);
      for (end = first; end < members->size() && key_of((*members)[end].name) == key;) ++end;
      add_sample(std::span(*members).subspan(first, end - first));
      if (problems_.size() >= kMostProblems) break;
    }
    if (problems_.empty() && set_.items.size() == before)
      problems_.push_back(
          {path, "has no samples with KEY.jpg and KEY.cls", "docs/data.md says what is read"});
    return std::exchange(problems_, {});
  }
  std::shared_ptr<const Tars> tars() const { return tars_; }

 private:
  static constexpr std::size_t kMostProblems = 10;

  void add_sample(std::span<const TarMember> members) {
    const TarMember *image = nullptr, *label = nullptr;
    for (const TarMember& member : members) {
      if (is_image_name(member.name)) image = &member;
      if (member.name.ends_with(".cls")) label = &member;
    }
    if (!image && !label) return;
    const std::string where = path_ + ":" + (image ? image : label)->name;
    if (!image || !label)
      return problems_.push_back({where, image ? "has no label" : "has no image",
                                  "each sample is KEY.jpg and KEY.cls, one behind the other"});
    constexpr std::int64_t kMostDigits = 64;
    std::string text;
    if (label->size <= kMostDigits) {
      Result<std::string> content = read_tar_member(path_, *label);
      if (!content) return append(problems_, content.problems());
      text = *std::move(content);
    }
    while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.pop_back();
    const auto target = number_of<int>(text);
    if (!target || *target < 0)
      return problems_.push_back({path_ + ":" + label->name,
                                  "holds '" + escaped(text) + "', which is no class number", "0, 1, 2, ..."});
    set_.items.push_back({where, *target, static_cast<std::int64_t>(tars_->places.size())});
    tars_->places.push_back({tars_->paths.size() - 1, *image});
  }

  ImageSet& set_;
  std::shared_ptr<Tars> tars_ = std::make_shared<Tars>();
  std::string path_;
  Problems problems_;
};

Result<ImageSet> index_tars(const std::string& text) {
  const auto paths = archives_of(text);
  if (!paths) return paths.problems();
  ImageSet set{.source = fs::path(paths->front()).parent_path().string()};
  if (set.source.empty()) set.source = ".";
  Indexer indexer(set);
  Problems problems;
  for (const std::string& path : *paths) append(problems, indexer.add(path));
  if (!problems.empty()) return problems;
  set.read = [tars = indexer.tars()](const ImageItem& item, RgbImage& image, std::string& error,
                                     const RegionOf& region) {
    const Tars::Place& place = tars->places[static_cast<std::size_t>(item.record)];
    const Result<std::string> bytes = read_tar_member(tars->paths[place.archive], place.member);
    if (bytes) return decode_image(*bytes, image, error, {}, region);
    error = to_string(bytes.problems());
    return false;
  };
  return set;
}

}  // namespace

Result<ImageSource> open_image_tars(const std::string& text) {
  const std::vector<std::string> names = split(text, ',');
  if (names.size() > 2)
    return Problem{"--data", "'" + text + "' names " + std::to_string(names.size()) + " sets of archives",
                   "give webdataset:TRAIN or webdataset:TRAIN,TEST"};
  Result<ImageSet> train = index_tars(names.front());
  if (!train) return train.problems();
  const auto most = std::ranges::max_element(train->items, {}, &ImageItem::target);
  const std::int64_t classes = std::int64_t{most->target} + 1;
  return ImageSource{.place = most->name,
                     .num_classes = classes,
                     .has_test = names.size() > 1,
                     .open = [=, train = *std::move(train)](DataSplit split) -> Result<ImageSet> {
                       if (split == DataSplit::Train) return train;
                       Result<ImageSet> test = index_tars(names.back());
                       if (!test) return test;
                       const auto other = std::ranges::find_if(
                           test->items, [&](const ImageItem& item) { return item.target >= classes; });
                       if (other == test->items.end()) return test;
                       return Problem{other->name,
                                      "is of class " + std::to_string(other->target) +
                                          ", which the training set does not have",
                                      "its classes are 0 to " + std::to_string(classes - 1)};
                     }};
}

}  // namespace millrace
