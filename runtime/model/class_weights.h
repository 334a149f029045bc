// Models in whose loss samples weigh as their labels say: some classes weigh more than others, or some labels
// are ignored.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/base/result.h"

namespace millrace {

struct LayeredModel;
class WeighsLabels;

/// The labels of a model whose heads weigh samples by them.
struct WeighedLabels {
  int field = 0;                             ///< index in LayeredModel::fields
  int count = 0;                             ///< index in LayeredModel::counts of what the samples weigh
  std::int64_t classes = 0;                  ///< for messages
  std::shared_ptr<const WeighsLabels> head;  ///< null: labels do not decide
};

/// Returns the index of the field whose classes can be weighed: the integer labels of cross-entropy, which
/// all heads of `model` read. Problem: the model ends otherwise.
Result<int> labels_to_weigh(const LayeredModel& model);

/// Gives the heads of `model` a weight for each class. Batches then need a count more, which the data set of
/// data/loading/weighed_dataset.h supplies. Problems: a number of weights that is not that of the classes, a
/// weight that is negative or not finite, no weight above zero, labels_to_weigh().
Status weigh_classes(LayeredModel& model, std::span<const double> weights);

/// Returns the labels that decide what samples weigh in `model`, or would after count_labels().
WeighedLabels weighed_labels(const LayeredModel& model);

/// Makes microbatches weigh as many as labels of them count, in the heads that can ignore labels. Batches
/// then need a count more, as with weigh_classes(). Needs a head that weighed_labels() finds and that weighs
/// by samples.
void count_labels(LayeredModel& model);

}  // namespace millrace
