// A data set of tensors that are in memory already.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "data/loading/dataset.h"
#include "runtime/base/result.h"
#include "runtime/model/layered_model.h"

namespace millrace {

struct TensorDatasetText {
  std::string description = "tensors";                  ///< Dataset::describe, before the number of samples
  std::string fingerprint;                              ///< empty: made from the values
  std::vector<std::string> notes;                       ///< Dataset::notes
  std::function<std::string(std::size_t field)> where;  ///< returns Problem::where; empty: the field's name
};

/// Makes a data set of tensors on the CPU. `tensors[f]`, [N, ...], is field f of all samples. Its type is
/// converted to the field's if both are floating or both are integers. A tensor of the field's type is kept,
/// not copied: do not write to it. A field's dimensions have one length in the whole set. Problems, all at
/// once: shapes that do not fit, numbers of samples that differ, integers beyond the field's limit.
Result<std::shared_ptr<const Dataset>> make_tensor_dataset(const std::vector<FieldSpec>& fields,
                                                           std::vector<at::Tensor> tensors,
                                                           const TensorDatasetText& text = {});

}  // namespace millrace
