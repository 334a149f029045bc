#pragma once

#include <memory>

#include "data/loading/dataset.h"

namespace millrace {

/// Makes `size` samples: a prototype for each class plus noise. Sample i depends on (seed, split, i) only.
/// Both splits have the same prototypes.
std::shared_ptr<const Dataset> make_synthetic(const DatasetOptions& options, std::int64_t size);

/// Makes samples of any fields. Floats are such that a model can tell them apart. Integers lie below their
/// limit and follow from each other. A field without a limit (a mask) has ones. Lengths are from half the
/// nominal ones (DatasetOptions) up.
std::shared_ptr<const Dataset> make_synthetic_fields(const DatasetOptions& options, std::int64_t size);

}  // namespace millrace
