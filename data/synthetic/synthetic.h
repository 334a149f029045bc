#pragma once

#include <memory>

#include "data/dataset.h"

namespace millrace {

/// `size` samples; sample i depends on (seed, split, i) only. The prototypes are the same for both splits.
std::shared_ptr<const Dataset> make_synthetic(const DatasetOptions& options, std::int64_t size);

}  // namespace millrace
