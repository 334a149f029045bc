#pragma once

#include <memory>

#include "data/dataset.h"

namespace millrace {

/// A user's own tensors: `paths` is TRAIN.npz or TRAIN.npz,TEST.npz; each field of the model is an array of
/// its name whose first dimension counts the samples. Null: no file for that split. Problems: arrays that are
/// missing, of another shape or of a type that does not fit, integers beyond a field's limit.
Result<std::shared_ptr<const Dataset>> make_array_file(const DatasetOptions& options,
                                                       const std::string& paths);

}  // namespace millrace
