#pragma once

#include <memory>

#include "data/loading/dataset.h"

namespace millrace {

/// `size` samples; sample i depends on (seed, split, i) only. The prototypes are the same for both splits.
std::shared_ptr<const Dataset> make_synthetic(const DatasetOptions& options, std::int64_t size);

/// Samples of any fields: floats a model can tell apart, integers below their limit that follow from each
/// other, ones where a field has no limit (masks); lengths from half the nominal ones (DatasetOptions) up.
std::shared_ptr<const Dataset> make_synthetic_fields(const DatasetOptions& options, std::int64_t size);

}  // namespace millrace
