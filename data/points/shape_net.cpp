// Reads the folder of ShapeNet-part (Yi et al., SIGGRAPH Asia 2016) as PointNet's examples do.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
#include <numbers>
#include <set>

#include "data/files/left_out.h"
#include "data/loading/samples.h"
#include "data/points/point_datasets.h"
#include "runtime/base/byte_order_mark.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "runtime/base/random.h"
#include "runtime/base/text.h"
#include "runtime/saved/hash.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

constexpr double kJitter = 0.02;
constexpr Bytes kLargestFile = 256 * kMiB;

struct Cloud {
  std::string id, name;  ///< id of the category, name of the shape
  int target = 0;
};

struct ShapeNetFiles {
  std::string folder;
  std::vector<std::string> classes;
  std::vector<Cloud> clouds;
  LeftOut left_out;
};

/// Reads the numbers of a text file, `columns` in each line. Throws DataError with the line.
std::vector<double> numbers_of(const fs::path& path, int columns) {
  const Result<std::string> text = read_regular_file(path, kLargestFile);
  if (!text) throw DataError(to_string(text.problems()));
  std::vector<double> all;
  std::int64_t number = 0;
  for (const std::string& line : split(without_mark(*text), '\n')) {
    ++number;
    const char *at = line.data(), *end = line.data() + line.size();
    int found = 0;
    for (;; ++found) {
      while (at != end && (*at == ' ' || *at == '\t' || *at == '\r')) ++at;
      if (at == end) break;
      double value = 0;
      const auto [after, error] = std::from_chars(at, end, value);
      if (error != std::errc() || !std::isfinite(value)) {
        found = -1;
        break;
      }
      all.push_back(value);
      at = after;
    }
    if (found != 0 && found != columns)
      throw DataError(path.string() + ":" + std::to_string(number) + ": " + escaped(line.substr(0, 60)),
                      "expected " + std::to_string(columns) + " finite numbers");
  }
  if (all.empty()) throw DataError(path.string() + " has no points");
  return all;
}

class ShapeNet final : public Dataset {
 public:
  ShapeNet(ShapeNetFiles files, const DatasetOptions& options)
      : files_(std::move(files)),
        num_points_(options.fields[0].shape[0]),
        parts_(options.fields[1].limit),
        labels_(field_index(options.fields, "labels")),
        train_(options.split == DataSplit::Train) {}

  std::int64_t size() const override { return static_cast<std::int64_t>(files_.clouds.size()); }
  int num_classes() const override { return labels_ < 0 ? static_cast<int>(files_.classes.size()) : 0; }
  std::string describe() const override {
    return files_.folder + ", " + std::to_string(size()) + " shapes of " +
           std::to_string(files_.classes.size()) + " categories";
  }
  std::string fingerprint() const override {
    Xxh3 listing;
    for (const Cloud& cloud : files_.clouds) listing.add(cloud.id + "/" + cloud.name + "\n");
    return std::to_string(size()) + " shapes, listing " + listing.value().hex().substr(0, 16);
  }
  std::vector<std::string> notes() const override { return files_.left_out.notes(); }
  std::int64_t left_out() const override { return files_.left_out.count(); }
  std::string name_of(std::int64_t index) const override {
    return file(cloud(index), "points", ".pts").string();
  }

  /// The choice of points depends only on the seed and on their number, which both files tell. So two ranks
  /// agree even if one reads only the points and the other only the labels.
  Sample get(std::int64_t index, std::uint64_t augment_seed, Wanted wanted) const override {
    const Cloud& cloud = this->cloud(index);
    Sample sample(2);
    if (labels_ < 0) sample[1].number = cloud.target;
    if (!wanted[0] && (labels_ < 0 || !wanted[1])) return sample;
    const fs::path path = file(cloud, "points", ".pts");
    const std::vector<double> points = numbers_of(path, 3);
    RandomStream random(augment_seed);
    std::vector<std::size_t> chosen(num_points_);
    for (std::size_t& one : chosen) one = static_cast<std::size_t>(random.below(points.size() / 3));
    if (labels_ >= 0) sample[1] = labels(cloud, chosen, points.size() / 3);
    if (wanted[0]) sample[0].tensor = moved(points, chosen, random);
    return sample;
  }

 private:
  const Cloud& cloud(std::int64_t index) const { return files_.clouds[index]; }
  fs::path file(const Cloud& cloud, const char* kind, const char* ending) const {
    return fs::path(files_.folder) / cloud.id / kind / (cloud.name + ending);
  }

  FieldValue labels(const Cloud& cloud, const std::vector<std::size_t>& chosen, std::size_t points) const {
    const fs::path path = file(cloud, "points_label", ".seg");
    const std::vector<double> parts = numbers_of(path, 1);
    if (parts.size() != points)
      throw DataError(path.string() + " has " + std::to_string(parts.size()) + " labels, its points are " +
                      std::to_string(points));
    std::vector<std::int64_t> found;
    for (const std::size_t i : chosen) {
      const auto part = static_cast<std::int64_t>(parts[i]);
      if (part < 1 || part > parts_)
        throw DataError(path.string() + ":" + std::to_string(i + 1) + ": part " + std::to_string(part) +
                            ", the model has " + std::to_string(parts_) + " from 1 on",
                        "give --classes N as the category has parts");
      found.push_back(part - 1);
    }
    return integers(found);
  }

  at::Tensor moved(const std::vector<double>& points, const std::vector<std::size_t>& chosen,
                   RandomStream& random) const {
    at::Tensor result = at::empty({num_points_, 3}, at::kFloat);
    float* xyz = result.mutable_data_ptr<float>();
    for (const std::size_t i : chosen) {
      for (std::size_t d = 0; d < 3; ++d) *xyz++ = static_cast<float>(points[3 * i + d]);
    }
    normalise_points_(result);
    if (!train_) return result;
    xyz = result.mutable_data_ptr<float>();
    const double angle = random.uniform(0, 2 * std::numbers::pi), c = std::cos(angle), s = std::sin(angle);
    for (std::int64_t i = 0; i < num_points_; ++i, xyz += 3) {
      const double x = xyz[0] * c + xyz[2] * s, z = xyz[2] * c - xyz[0] * s;
      xyz[0] = static_cast<float>(x + kJitter * random.normal());
      xyz[1] = static_cast<float>(xyz[1] + kJitter * random.normal());
      xyz[2] = static_cast<float>(z + kJitter * random.normal());
    }
    return result;
  }

  ShapeNetFiles files_;
  std::int64_t num_points_, parts_;
  int labels_;
  bool train_;
};

/// Returns the ids of the categories by name.
Result<std::map<std::string, std::string>> categories_in(const fs::path& folder) {
  const fs::path path = folder / "synsetoffset2category.txt";
  const Result<std::string> text = read_regular_file(path, kMiB);
  if (!text) {
    Problems problems = text.problems();
    problems.front().hint = "--data shapenet:FOLDER needs ShapeNet-part's folder (docs/data.md)";
    return problems;
  }
  std::map<std::string, std::string> categories;
  for (const std::string& line : split(without_mark(*text), '\n')) {
    std::string plain = line;
    std::ranges::replace_if(
        plain, [](char c) { return c == '\t' || c == '\r'; }, ' ');
    const std::vector<std::string> words = words_of(plain, ' ');
    if (words.empty()) continue;
    if (words.size() != 2 || words[1].find('/') != std::string::npos || words[1].starts_with('.'))
      return Problem{path.string(), "has the line '" + escaped(line) + "'", "expected a name and an id"};
    categories[words[0]] = words[1];
  }
  if (categories.empty()) return Problem{path.string(), "names no category", {}};
  return categories;
}

/// Reads a list of "shape_data/ID/NAME". Returns the clouds of the categories with these ids. Those that are
/// not even among the `known` ids go to `left_out`.
Result<std::vector<Cloud>> clouds_in(const fs::path& path, const std::map<std::string, int>& target_of_id,
                                     const std::set<std::string>& known, LeftOut& left_out) {
  const Result<Json> list = read_json(path.string());
  if (!list) return list.problems();
  if (!list->is_array()) return Problem{path.string(), "is no list of \"shape_data/ID/NAME\"", {}};
  std::vector<Cloud> clouds;
  for (const Json& entry : list->items()) {
    const std::vector<std::string> parts =
        entry.is_string() ? split(entry.as_string(), '/') : std::vector<std::string>();
    if (parts.size() != 3 || parts[2].empty() || parts[2].starts_with('.'))
      return Problem{path.string(), "has the entry " + entry.dump(), "expected \"shape_data/ID/NAME\""};
    if (const auto found = target_of_id.find(parts[1]); found != target_of_id.end())
      clouds.push_back({.id = parts[1], .name = parts[2], .target = found->second});
    else if (!known.contains(parts[1]))
      left_out.add("shapes of categories that synsetoffset2category.txt does not name", entry.as_string());
  }
  return clouds;
}

}  // namespace

Result<std::shared_ptr<const Dataset>> make_shape_net(const DatasetOptions& options,
                                                      const std::string& text) {
  std::vector<std::string> words = split(text, ',');
  const fs::path folder = words.front();
  words.erase(words.begin());
  auto categories = categories_in(folder);
  if (!categories) return categories.problems();
  Problems problems;
  std::map<std::string, std::string> chosen = words.empty() ? *categories : decltype(chosen)();
  std::vector<std::string> names;
  for (const auto& [name, id] : *categories) names.push_back(name);
  for (const std::string& word : words) {
    if (const auto found = categories->find(word); found != categories->end()) {
      chosen.insert(*found);
      continue;
    }
    const auto nearest = nearest_name(word, names);
    problems.push_back({folder.string(), "has no category '" + escaped(word) + "'",
                        nearest ? "did you mean " + *nearest + "?" : "its first is " + names.front()});
  }
  if (!problems.empty()) return problems;
  const FieldSpec& labels = options.fields[1];
  if (labels.name == "labels" && chosen.size() != 1)
    return Problem{
        "--data",
        "parts are those of one category, " + folder.string() + " has " + std::to_string(chosen.size()),
        "for example shapenet:" + folder.string() + "," + names.front()};
  if (labels.name == "target" && static_cast<std::int64_t>(chosen.size()) > labels.limit)
    return Problem{folder.string(),
                   "has " + std::to_string(chosen.size()) + " categories, the model " +
                       std::to_string(labels.limit) + " classes",
                   "give --classes " + std::to_string(chosen.size())};
  ShapeNetFiles files{.folder = folder.string()};
  std::map<std::string, int> target_of_id;
  for (const auto& [name, id] : chosen) {
    target_of_id[id] = static_cast<int>(files.classes.size());
    files.classes.push_back(name);
  }
  const fs::path list =
      folder / "train_test_split" / ("shuffled_" + std::string(to_string(options.split)) + "_file_list.json");
  std::error_code ignored;
  if (options.split != DataSplit::Train && !fs::exists(list, ignored))
    return std::shared_ptr<const Dataset>();
  std::set<std::string> known;
  for (const auto& [name, id] : *categories) known.insert(id);
  Result<std::vector<Cloud>> clouds = clouds_in(list, target_of_id, known, files.left_out);
  if (!clouds) return clouds.problems();
  if (clouds->empty()) return Problem{list.string(), "lists no shape of these categories", {}};
  files.clouds = *std::move(clouds);
  return std::shared_ptr<const Dataset>(std::make_shared<ShapeNet>(std::move(files), options));
}

}  // namespace millrace
