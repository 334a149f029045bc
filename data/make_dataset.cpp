#include <algorithm>

#include "data/clicks/click_datasets.h"
#include "data/files/data_kinds.h"
#include "data/language/language_datasets.h"
#include "data/loading/dataset.h"
#include "data/points/point_datasets.h"
#include "data/readers/array_file.h"
#include "data/readers/image_set.h"
#include "data/synthetic/synthetic.h"
#include "data/volumes/volume_datasets.h"
#include "runtime/base/numbers.h"
#include "runtime/device/host_memory.h"

namespace millrace {

namespace {
/// Returns whether the fields are those of a classifier: a floating "input" and an integer label of known
/// classes, and perhaps what mix_targets adds.
bool reads_labelled_tensors(const std::vector<FieldSpec>& fields) {
  const bool mixed = fields.size() == 4 && fields[2].name == "partner" && fields[3].name == "share";
  return (fields.size() == 2 || mixed) && at::isFloatingType(fields[0].dtype) && fields[1].shape.empty() &&
         fields[1].dtype == at::kLong && fields[1].limit > 0 &&
         std::ranges::all_of(fields[0].shape, [](std::int64_t d) { return d >= 0; });
}

/// Returns whether the model reads square images and nothing else, as generators do.
bool reads_images_alone(const std::vector<FieldSpec>& fields) {
  return fields.size() == 1 && fields[0].dtype == at::kFloat && fields[0].shape.size() == 3 &&
         fields[0].shape[0] == 3 && fields[0].shape[1] > 0 && fields[0].shape[1] == fields[0].shape[2];
}
}  // namespace

Result<std::shared_ptr<const Dataset>> make_dataset(const DatasetOptions& options) {
  const UncountedTensors of_the_set;
  const auto arrays = rest_of(options.path, kArrayData);
  if (options.length_buckets > 0 && (arrays || !reads_text(options.fields)))
    return Problem{"--length-buckets", "is for pairs of sentences", "leave it out"};
  if (options.random_bptt && (arrays || !reads_text(options.fields)))
    return Problem{"--random-bptt", "is for text that runs on", "leave it out"};
  const bool made_up = rest_of(options.path, kSyntheticData).has_value();
  const bool no_images = arrays || made_up || !reads_labelled_tensors(options.fields);
  if (no_images && options.holdout > 0)
    return Problem{"--holdout", "is for images with labels", "leave it out"};
  if (no_images && !options.augment.empty())
    return Problem{"--augment", "is for images with labels", "leave it out"};
  if (arrays) return make_array_file(options, std::string(*arrays));
  if (reads_text(options.fields)) return make_language_dataset(options);
  const bool points = reads_points(options.fields),
             labelled = !points && reads_labelled_tensors(options.fields),
             images = reads_images_alone(options.fields);
  if (const auto folder = rest_of(options.path, kShapeNetData); points && folder)
    return make_shape_net(options, std::string(*folder));
  const bool volumes = reads_volumes(options.fields);
  if (const auto folder = rest_of(options.path, kKitsData); volumes && folder)
    return make_kits(options, std::string(*folder));
  const bool clicks = reads_clicks(options.fields);
  if (const auto files = rest_of(options.path, kCriteoData); clicks && files)
    return make_criteo(options, std::string(*files));
  if (!labelled && !images && !options.path.starts_with("synthetic")) {
    std::string names;
    for (const FieldSpec& field : options.fields) names += (names.empty() ? "" : ", ") + field.name;
    return Problem{"--data", "the model reads " + names + "; " + options.path + " has inputs and labels",
                   std::string(points    ? "--data shapenet:FOLDER, "
                               : volumes ? "--data kits:FOLDER, "
                               : clicks  ? "--data criteo:FOLDER, "
                                         : "--data ") +
                       "arrays:FILE.npz with these arrays, or synthetic"};
  }
  constexpr std::int64_t kTrain = 8192, kTest = 1024;
  const auto make = [&](std::int64_t size) {
    if (points) return make_synthetic_points(options, size);
    if (volumes) return make_synthetic_volumes(options, size);
    if (clicks) return make_synthetic_clicks(options, size);
    return labelled ? make_synthetic(options, size) : make_synthetic_fields(options, size);
  };
  if (const auto text = rest_of(options.path, kSyntheticData)) {
    if (options.path == kSyntheticData) return make(options.split == DataSplit::Train ? kTrain : kTest);
    const std::int64_t size = number_of<std::int64_t>(*text).value_or(0);
    if (size < 1) {
      return Problem{"--data", "'" + options.path + "' has no valid size", "for example synthetic:4096"};
    }
    return make(options.split == DataSplit::Train ? size : std::max<std::int64_t>(1, size / 8));
  }
  return images ? make_image_tree(options) : make_labelled_images(options);
}

Result<std::shared_ptr<const Dataset>> make_dataset(const DatasetOptions& options,
                                                    const std::vector<NamedDataset>& own) {
  const UncountedTensors of_the_set;
  for (const NamedDataset& dataset : own) {
    if (options.path == dataset.name || options.path.starts_with(dataset.name + ":"))
      return dataset.make(options);
  }
  return make_dataset(options);
}

}  // namespace millrace
