#include "runtime/model/field_limit.h"

#include <string>

#include "runtime/base/error.h"

namespace millrace {

void check_limit(const FieldSpec& field, const at::Tensor& values) {
  if (field.limit <= 0 || values.scalar_type() != at::kLong || !values.device().is_cpu()) return;
  const at::Tensor flat = values.contiguous();
  const std::int64_t* value = flat.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < flat.numel(); ++i) {
    if ((value[i] >= 0 && value[i] < field.limit) || value[i] == field.padding) continue;
    throw DataError(field.name + " " + std::to_string(value[i]) + " is outside the model's " +
                        std::to_string(field.limit) + (field.name == "target" ? " classes" : " values"),
                    field.name == "target" ? "give --classes N as the data set has"
                                           : "the data set was made for another model or vocabulary");
  }
}

}  // namespace millrace
