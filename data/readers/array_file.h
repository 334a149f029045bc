#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "data/loading/dataset.h"

namespace millrace {

/// Makes a data set of a user's own arrays. `paths` is TRAIN.npz or TRAIN.npz,TEST.npz. Each field of the
/// model is the array of its name; the array's first dimension counts the samples. Returns null if there is
/// no file for the split. Problems: arrays that are missing, of another shape or of a type that does not fit,
/// integers beyond a field's limit.
Result<std::shared_ptr<const Dataset>> make_array_file(const DatasetOptions& options,
                                                       const std::string& paths);

/// Returns the array of an NPY file as a tensor of the array's type that refers to `bytes`. `name` is for
/// messages. Problems: those of parse_npy, a type that tensors do not have, or Fortran order.
Result<at::Tensor> npy_tensor(std::string_view bytes, const std::string& name);

}  // namespace millrace
