#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "data/loading/dataset.h"

namespace millrace {

/// A user's own tensors: `paths` is TRAIN.npz or TRAIN.npz,TEST.npz; each field of the model is an array of
/// its name whose first dimension counts the samples. Null: no file for that split. Problems: arrays that are
/// missing, of another shape or of a type that does not fit, integers beyond a field's limit.
Result<std::shared_ptr<const Dataset>> make_array_file(const DatasetOptions& options,
                                                       const std::string& paths);

/// The array of an NPY file as a tensor of its own type that refers to `bytes`; `name` is for messages.
/// Problems: those of parse_npy; a type that tensors do not have, or Fortran order.
Result<at::Tensor> npy_tensor(std::string_view bytes, const std::string& name);

}  // namespace millrace
