// Classifiers in whose loss some classes weigh more than others.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/result.h"

namespace millrace {

struct LayeredModel;

/// What a classifier with weights of classes reads its labels from.
struct WeighedLabels {
  int field = 0;                    ///< index in LayeredModel::fields
  int count = 0;                    ///< index in LayeredModel::counts of what the samples weigh
  std::vector<std::int64_t> units;  ///< weight of each class, in units (with_class_weights)
};

/// Returns the index of the field whose classes can be weighed: the integer labels of cross-entropy, which
/// all heads of `model` read. Problem: the model ends otherwise.
Result<int> labels_to_weigh(const LayeredModel& model);

/// Gives the heads of `model` a weight for each class. Batches then need a count more, which the data set of
/// data/loading/weighed_dataset.h supplies. Problems: a number of weights that is not that of the classes, a
/// weight that is negative or not finite, no weight above zero, labels_to_weigh().
Status weigh_classes(LayeredModel& model, std::span<const double> weights);

/// Returns what weigh_classes() made of `model`; empty units: nothing.
WeighedLabels weighed_labels(const LayeredModel& model);

}  // namespace millrace
