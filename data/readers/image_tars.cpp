// WebDataset: images and their labels in tar archives, KEY.jpg beside KEY.cls. A key ends at the first dot
// behind the last slash, and the text after that dot is the field: KEY.seg.png is another field than KEY.png.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "data/files/tar.h"
#include "data/readers/decode_image.h"
#include "data/readers/image_set.h"
#include "runtime/base/byte_order_mark.h"
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
Result<std::vector<std::string>> archives_of(const std::string& text, LeftOut& left_out) {
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
    paths.push_back(at->path().string());
  if (error) return Problem{text, "cannot be read: " + error.message(), {}};
  std::ranges::sort(paths);
  std::erase_if(paths, [&](const std::string& path) {
    const std::string_view ignored = reason_to_ignore(fs::path(path).filename().string());
    const bool is_archive = ignored.empty() && path.ends_with(".tar");
    if (!is_archive) left_out.add(ignored.empty() ? "files that are not .tar archives" : ignored, path);
    return !is_archive;
  });
  if (paths.empty()) return Problem{text, "has no .tar archives", "name the folder that holds them"};
  return paths;
}

/// A file of an archive by WebDataset's rule.
struct FieldFile {
  const TarMember* member;
  std::string_view key;  ///< with the folder
  std::string field;     ///< in lower case
  bool is_image() const { return field.find('.') == std::string::npos && is_image_name("x." + field); }
  bool is_label() const { return field == "cls"; }
  /// Returns whether it looks like an image or a label whose name has a dot too many.
  bool ends_like_one() const {
    const std::size_t dot = field.rfind('.');
    if (dot == std::string::npos) return false;
    return FieldFile{member, key, field.substr(dot + 1)}.is_image() || field.ends_with(".cls");
  }
};

class Indexer {
 public:
  explicit Indexer(ImageSet& set) : set_(set) {}

  Problems add(const std::string& path) {
    const auto members = list_tar(path);
    if (!members) return members.problems();
    const std::size_t before = set_.items.size();
    path_ = path;
    tars_->paths.push_back(path);
    const std::vector<FieldFile> files = fields_of(*members);
    for (std::size_t first = 0, end = 0; first < files.size(); first = end) {
      while (end < files.size() && files[end].key == files[first].key &&
             files[end].member->part == files[first].member->part)
        ++end;
      add_sample(std::span(files).subspan(first, end - first));
      if (problems_.size() >= kMostListed) break;
    }
    if (problems_.empty() && set_.items.size() == before)
      problems_.push_back(
          {path, "has no samples with KEY.jpg and KEY.cls", "docs/data.md says what is read"});
    return std::exchange(problems_, {});
  }
  std::shared_ptr<const Tars> tars() const { return tars_; }

  /// Adds notes about keys that several samples have.
  void note_repeated_keys() {
    std::ranges::sort(keys_);
    std::int64_t here = 0, elsewhere = 0;
    std::string first_here, first_elsewhere;
    for (std::size_t i = 1; i < keys_.size(); ++i) {
      if (keys_[i].first != keys_[i - 1].first) continue;
      const auto [before, now] = std::pair(keys_[i - 1].second, keys_[i].second);
      const bool same = tars_->places[before].archive == tars_->places[now].archive;
      if ((same ? here : elsewhere)++ == 0)
        (same ? first_here : first_elsewhere) = set_.items[before].name + " and " + set_.items[now].name;
    }
    if (here > 0)
      set_.notes.push_back(std::to_string(here) + " keys occur again in their archive (first: " + first_here +
                           "): each occurrence is a sample");
    if (elsewhere > 0)
      set_.notes.push_back(std::to_string(elsewhere) + " keys occur in several archives (first: " +
                           first_elsewhere + "): each occurrence is a sample");
  }

 private:
  std::string place(const TarMember& member) const { return path_ + ":" + member.name; }

  std::vector<FieldFile> fields_of(const std::vector<TarMember>& members) {
    std::vector<FieldFile> files;
    for (const TarMember& member : members) {
      const std::string_view name = member.name, base = name.substr(name.rfind('/') + 1);
      const std::size_t dot = name.find('.', name.size() - base.size());
      std::string_view reason = reason_to_ignore(base);
      if (name.starts_with("__MACOSX/")) reason = reason_to_ignore("__MACOSX");
      if (reason.empty() && !member.is_file) reason = "links, devices and others that are no files";
      if (reason.empty() && dot == std::string_view::npos) reason = "files without a dot in their names";
      if (!reason.empty()) {
        set_.left_out.add(reason, place(member));
        continue;
      }
      std::string field(name.substr(dot + 1));
      std::ranges::transform(field, field.begin(),
                             [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
      files.push_back({&member, name.substr(0, dot), std::move(field)});
    }
    return files;
  }

  /// Returns the one file of a sample for which `is` holds. Null: there is none, or several, which is a
  /// problem.
  const TarMember* only(std::span<const FieldFile> files, bool (FieldFile::*is)() const, const char* what) {
    const TarMember* found = nullptr;
    for (const FieldFile& file : files) {
      if (!(file.*is)()) continue;
      if (found)
        problems_.push_back({place(*file.member),
                             std::string("is another ") + what + " of the key '" + escaped(file.key) +
                                 "' beside " + escaped(found->name),
                             "a sample has one of each; a key ends at the first dot of a file's name"});
      found = file.member;
    }
    return found;
  }

  void add_sample(std::span<const FieldFile> files) {
    const std::size_t problems = problems_.size();
    const TarMember *image = only(files, &FieldFile::is_image, "image"),
                    *label = only(files, &FieldFile::is_label, "class");
    if (problems_.size() > problems) return;
    if (!image && !label) {
      const auto dotted = std::ranges::find_if(files, &FieldFile::ends_like_one);
      if (dotted != files.end())
        return problems_.push_back(
            {place(*dotted->member),
             "is the field '" + escaped(dotted->field) + "' of the key '" + escaped(dotted->key) +
                 "', which has neither an image nor a class (" + std::to_string(files.size()) + " files)",
             "a key ends at the first dot of a file's name: take the other dots out of the names"});
      for (const FieldFile& file : files)
        set_.left_out.add("files of keys with neither an image nor a class", place(*file.member));
      return;
    }
    if (!image || !label)
      return problems_.push_back({place(image ? *image : *label), image ? "has no label" : "has no image",
                                  "each sample is KEY.jpg and KEY.cls, one behind the other; a key ends at "
                                  "the first dot of a file's name"});
    for (const FieldFile& file : files)
      if (file.member != image && file.member != label)
        set_.left_out.add("files of fields that are not read", place(*file.member));
    constexpr std::int64_t kMostDigits = 64;
    std::string text;
    if (label->size <= kMostDigits) {
      Result<std::string> content = read_tar_member(path_, *label);
      if (!content) return append(problems_, content.problems());
      text = *std::move(content);
    }
    while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.pop_back();
    const auto target = number_of<int>(without_mark(text));
    if (!target || *target < 0)
      return problems_.push_back(
          {place(*label), "holds '" + escaped(text) + "', which is no class number", "0, 1, 2, ..."});
    keys_.emplace_back(std::hash<std::string_view>()(files.front().key), tars_->places.size());
    set_.items.push_back({place(*image), *target, static_cast<std::int64_t>(tars_->places.size())});
    tars_->places.push_back({tars_->paths.size() - 1, *image});
  }

  ImageSet& set_;
  std::shared_ptr<Tars> tars_ = std::make_shared<Tars>();
  std::vector<std::pair<std::size_t, std::size_t>> keys_;  ///< hash of each sample's key, and the sample
  std::string path_;
  Problems problems_;
};

Result<ImageSet> index_tars(const std::string& text) {
  ImageSet set;
  const auto paths = archives_of(text, set.left_out);
  if (!paths) return paths.problems();
  set.source = fs::path(paths->front()).parent_path().string();
  if (set.source.empty()) set.source = ".";
  Indexer indexer(set);
  Problems problems;
  for (const std::string& path : *paths) {
    append(problems, indexer.add(path));
    if (problems.size() >= kMostListed) break;
  }
  if (!problems.empty()) return problems;
  indexer.note_repeated_keys();
  set.read = [tars = indexer.tars()](const ImageItem& item, RgbImage& image, std::string& error,
                                     const RegionOf& region) {
    const Tars::Place& place = tars->places[static_cast<std::size_t>(item.record)];
    const Result<std::string> bytes = read_tar_member(tars->paths[place.archive], place.member);
    if (bytes) return decode_image(*bytes, image, error, {}, region);
    Problem problem = bytes.problems().front();
    problem.where.clear();  // the caller names the image
    error = to_string(problem);
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
