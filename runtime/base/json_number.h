// Numbers in JSON that millrace wrote. Json::dump() has the one rule for numbers that are not finite: they
// are the strings "NaN", "Infinity" and "-Infinity". Null means that there is no number.
#pragma once

#include <limits>
#include <optional>
#include <string_view>

#include "runtime/base/json.h"

namespace millrace {

/// Returns the number that `value` is, finite or not; empty: it is none. Readers of files of users take
/// numbers through ObjectReader instead, which refuses the strings.
inline std::optional<double> number_in(const Json& value) {
  if (value.is_number()) return value.as_double();
  if (!value.is_string()) return std::nullopt;
  const std::string& text = value.as_string();
  if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (text == "Infinity") return std::numeric_limits<double>::infinity();
  if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

/// Returns the same of the member `key`; empty also if `object` lacks it.
inline std::optional<double> number_in(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value ? number_in(*value) : std::nullopt;
}

}  // namespace millrace
