#include "runtime/base/scalar_sink.h"

#include "runtime/base/json_number.h"

namespace millrace {

Scalars scalars_of(const Json& line) {
  Scalars all;
  for (const auto& [name, value] : line.members()) {
    if (name == "step" || name == "ended_s") continue;
    if (const auto number = number_in(value)) all.emplace_back(name, *number);
    if (value.kind() == Json::Kind::Bool) all.emplace_back(name, value.as_bool() ? 1 : 0);
  }
  return all;
}

}  // namespace millrace
