#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

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

/// Array files one after the other, as a data set without labels.
struct JoinedArrays {
  std::shared_ptr<const Dataset> dataset;
  std::vector<std::string> names;  ///< by sample: "x.npy", or of several samples "x.npy[3]"
};
/// Reads `paths`, NPY or NPZ files, for `fields`. An NPZ file has an array for each field and may have
/// others. An NPY file is the array of the only field; without a dimension for samples it is one sample.
/// Problems: as make_array_file(), an NPY file for several fields, lengths that differ from file to file.
Result<JoinedArrays> join_array_files(const std::vector<std::string>& paths,
                                      const std::vector<FieldSpec>& fields);

}  // namespace millrace
