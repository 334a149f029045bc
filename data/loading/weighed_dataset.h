// Labels of a data set, and a data set that reports the weights of its samples.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/loading/dataset.h"
#include "runtime/model/class_weights.h"

namespace millrace {

/// Returns the class of each sample, in the order of the samples. It reads labels and nothing else. `fields`
/// is the number of the model's fields, `field` the one of the labels.
std::vector<std::int64_t> labels_of(const Dataset& dataset, std::size_t fields, int field);

/// Returns the weight of each sample (WeighsLabels), in the order of the samples. It reads labels and nothing
/// else. Throws DataError if a label is out of range.
std::vector<std::int64_t> weights_of(const Dataset& dataset, std::size_t fields, const WeighedLabels& labels);

/// Returns `dataset` with a measure() that also reports the weight of a sample. Throws DataError if a label
/// is out of range.
std::shared_ptr<const Dataset> weighed(std::shared_ptr<const Dataset> dataset, std::size_t fields,
                                       WeighedLabels labels);

}  // namespace millrace
