// Numbers read from text.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace millrace {

/// Returns `text` as a number. Empty if `text` contains anything else, or if the number does not fit. "inf"
/// and "nan" are accepted if Number is a floating-point type.
template <class Number>
std::optional<Number> number_of(std::string_view text) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end) return std::nullopt;
  return value;
}

}  // namespace millrace
