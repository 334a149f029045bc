// Numbers in JSON that millrace wrote. Json::dump() writes numbers that are not finite as the strings "NaN",
// "Infinity" and "-Infinity". Null means that there is no number.
#pragma once

#include <limits>
#include <optional>
#include <string_view>

#include "runtime/base/json.h"

namespace millrace {

/// Returns `value` as a number, finite or not; empty if it is not a number. Readers of user files use
/// ObjectReader instead, which rejects the strings.
inline std::optional<double> number_in(const Json& value) {
  if (value.is_number()) return value.as_double();
  if (!value.is_string()) return std::nullopt;
  const std::string& text = value.as_string();
  if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (text == "Infinity") return std::numeric_limits<double>::infinity();
  if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

/// Returns the member `key` as a number; empty if it is absent or not a number.
inline std::optional<double> number_in(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value ? number_in(*value) : std::nullopt;
}

}  // namespace millrace
