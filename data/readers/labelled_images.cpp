// Data sets of images with labels: which reader a path is for, and what is held out for evaluation.
#include <algorithm>
#include <cmath>

#include "data/files/data_kinds.h"
#include "data/files/webp.h"
#include "data/readers/decode_image.h"
#include "data/readers/image_dataset.h"
#include "data/readers/image_set.h"
#include "runtime/base/files.h"
#include "runtime/base/random.h"

namespace millrace {
namespace {

Result<ImageSource> open_source(const std::string& path, std::int64_t classes) {
  if (const auto tables = rest_of(path, kTableData)) return open_image_table(std::string(*tables));
  if (const auto archives = rest_of(path, kTarData)) return open_image_tars(std::string(*archives));
  if (auto packed = open_packed_images(path, classes)) return *std::move(packed);
  return open_image_folder(path);
}

/// A Problem if the share leaves one of the two sets empty, or if there is a test set already.
Status check_held_out(const ImageSource& source, const ImageSet& kept, const DatasetOptions& options) {
  if (source.has_test)
    return Problem{"--holdout", options.path + " has images to evaluate on already", "leave it out"};
  if (!kept.items.empty()) return Ok{};
  return Problem{"--holdout",
                 std::string("leaves no images to ") +
                     (options.split == DataSplit::Train ? "train on" : "evaluate on") + ": " +
                     "its share of every class rounds to " +
                     (options.split == DataSplit::Train ? "all of it" : "none of it"),
                 "give another share, such as 0.2"};
}

Status check_webp(const ImageSet& set) {
  const auto is_webp_name = [](const ImageItem& item) {
    return item.name.ends_with(".webp") || item.name.ends_with(".WEBP");
  };
  const auto found = std::ranges::find_if(set.items, is_webp_name);
  if (found == set.items.end() || webp_library()) return Ok{};
  Problem problem = webp_library().problems().front();
  problem.where = found->name + ": " + problem.where;
  return problem;
}

}  // namespace

bool read_image_file(const ImageItem& item, RgbImage& image, std::string& error, const RegionOf& region) {
  const Result<std::string> bytes = read_regular_file(item.name, 512 * kMiB);
  if (bytes) return decode_image(*bytes, image, error, {}, region);
  error = to_string(bytes.problems());
  return false;
}

std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 5;
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, names.size()); ++i) text += (i ? ", " : "") + names[i];
  return text + (names.size() > kShown ? " and " + std::to_string(names.size() - kShown) + " more" : "");
}

void hold_out(ImageSet& set, double share, std::uint64_t seed, DataSplit kept) {
  struct Lot {
    std::uint64_t drawn;
    std::size_t item;
  };
  std::map<int, std::vector<Lot>> classes;
  for (std::size_t i = 0; i < set.items.size(); ++i) {
    const ImageItem& item = set.items[i];
    classes[item.target].push_back({derive_seed(seed, "holdout:" + relative_name(set, item)), i});
  }
  std::vector<char> is_held(set.items.size(), 0);
  for (auto& [target, lots] : classes) {
    std::ranges::sort(lots, {}, [](const Lot& lot) { return std::pair(lot.drawn, lot.item); });
    const auto held = static_cast<std::size_t>(std::llround(share * static_cast<double>(lots.size())));
    for (std::size_t k = 0; k < held; ++k) is_held[lots[k].item] = 1;
  }
  std::vector<ImageItem> items;
  for (std::size_t i = 0; i < set.items.size(); ++i)
    if (is_held[i] == (kept == DataSplit::Test)) items.push_back(std::move(set.items[i]));
  set.items = std::move(items);
}

Result<std::shared_ptr<const Dataset>> make_labelled_images(const DatasetOptions& options) {
  const Shape& shape = options.fields[0].shape;
  const std::int64_t model_classes = options.fields[1].limit;
  if (shape.size() != 3 || shape[0] != 3 || shape[1] != shape[2])
    return Problem{options.path, "the model does not take images", "use --data synthetic for this model"};
  const Result<ImageSource> source = open_source(options.path, model_classes);
  if (!source) return source.problems();
  const bool train = options.split == DataSplit::Train, divided = options.holdout > 0;
  if (!train && !source->has_test && !divided && !source->evaluates_on_training)
    return std::shared_ptr<const Dataset>();
  Result<ImageSet> set = source->open(divided ? DataSplit::Train : options.split);
  Problems problems = set ? Problems{} : set.problems();
  if (source->num_classes > model_classes) {
    problems.push_back({source->place,
                        "has " + std::to_string(source->num_classes) + " classes, the model " +
                            std::to_string(model_classes),
                        "give --classes " + std::to_string(source->num_classes)});
  }
  if (!problems.empty()) return problems;
  if (divided) {
    hold_out(*set, options.holdout, options.holdout_seed, options.split);
    if (const Status fits = check_held_out(*source, *set, options); !fits) return fits.problems();
  } else if (!train && !source->has_test) {
    set->notes.push_back("evaluates on the images that it trains on: " + options.path +
                         " has no others (--holdout 0.1 keeps a tenth of each class for the evaluation)");
  }
  if (const Status there = check_webp(*set); !there) return there.problems();
  Preparation preparation{.size = static_cast<int>(shape[1]),
                          .train = train,
                          .num_classes = static_cast<int>(source->num_classes),
                          .augment = {},
                          .mixes = options.fields.size() == 4};
  if (!source->augments) preparation.augment.emplace();
  if (!options.augment.empty()) {
    Result<std::vector<AugmentStep>> steps = augment_steps_from(options.augment);
    if (!steps) return steps.problems();
    preparation.augment = *std::move(steps);
  }
  return make_image_dataset(*std::move(set), preparation);
}

}  // namespace millrace
