// Models in whose loss the labels determine the samples' weights: some classes have larger weights, or some
// labels are ignored.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/base/result.h"

namespace millrace {

struct LayeredModel;
class WeighsLabels;

/// The labels that determine the sample weights in a model's heads.
struct WeighedLabels {
  int field = 0;                             ///< index in LayeredModel::fields
  int count = 0;                             ///< index in LayeredModel::counts of the samples' weight
  std::int64_t classes = 0;                  ///< for messages
  std::shared_ptr<const WeighsLabels> head;  ///< null: labels do not determine weights
};

/// Returns the index of the field whose classes can be weighted: the integer labels of cross-entropy, which
/// all heads of `model` read. Returns an error if the model's heads are of other kinds.
Result<int> labels_to_weigh(const LayeredModel& model);

/// Gives the heads of `model` a weight for each class. Batches then need one more count, which the data set
/// of data/loading/weighed_dataset.h supplies. Returns an error if the number of weights is not that of the
/// classes, if a weight is negative or not finite, if no weight is positive, or as labels_to_weigh() does.
Status weigh_classes(LayeredModel& model, std::span<const double> weights);

/// Returns the labels that determine sample weights in `model`, now or after count_labels().
WeighedLabels weighed_labels(const LayeredModel& model);

/// Makes the weight of a microbatch the number of its counted labels, in the heads that can ignore labels.
/// Batches then need one more count, as with weigh_classes(). Requires a head that weighed_labels() finds and
/// that weighs by samples.
void count_labels(LayeredModel& model);

}  // namespace millrace
