// Helpers of data sets over named fields: fields by name, samples of integers.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "data/loading/dataset.h"

namespace millrace {

/// Returns the index of the field among `fields`; -1: the model does not read it.
inline int field_index(const std::vector<FieldSpec>& fields, const std::string& name) {
  const auto found = std::ranges::find(fields, name, &FieldSpec::name);
  return found == fields.end() ? -1 : static_cast<int>(found - fields.begin());
}

inline FieldValue integers(std::span<const std::int64_t> values) {
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(values.size())}, at::kLong);
  if (!values.empty()) std::memcpy(tensor.mutable_data_ptr(), values.data(), values.size_bytes());
  return {.tensor = std::move(tensor)};
}

/// Sets a field of `sample` if the model has it and it is wanted.
inline void set_field(Sample& sample, Wanted wanted, int field, FieldValue value) {
  if (field >= 0 && wanted[field]) sample[field] = std::move(value);
}

}  // namespace millrace
