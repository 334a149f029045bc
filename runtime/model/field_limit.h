// The check that every reader of a batch applies to integers.
#pragma once

#include "runtime/model/layered_model.h"

namespace millrace {

/// Throws DataError if an integer field holds a value outside its limit that is not its padding either.
/// Thread-safe.
void check_limit(const FieldSpec& field, const at::Tensor& values);

}  // namespace millrace
