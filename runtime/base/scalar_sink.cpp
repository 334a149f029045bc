#include "runtime/base/scalar_sink.h"

namespace millrace {

Scalars scalars_of(const Json& line) {
  Scalars all;
  for (const auto& [name, value] : line.members()) {
    if (name == "step" || name == "ended_s") continue;
    if (value.is_number()) all.emplace_back(name, value.as_double());
    if (value.kind() == Json::Kind::Bool) all.emplace_back(name, value.as_bool() ? 1 : 0);
  }
  return all;
}

}  // namespace millrace
