#include "runtime/base/text_values.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "runtime/base/numbers.h"
#include "runtime/base/quantities.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

template <class Number>
bool parse_whole(std::string_view text, Number& value) {
  const std::optional<Number> number = number_of<Number>(text);
  if (number) value = *number;
  return number.has_value();
}

bool parse_finite(std::string_view text, double& value) {
  return parse_whole(text, value) && std::isfinite(value);
}

/// Prints a number without an exponent, for ranges in messages.
std::string shown(double number) {
  char text[400];
  const auto [end, error] = std::to_chars(text, text + sizeof text, number, std::chars_format::fixed);
  return error == std::errc{} ? std::string(text, end) : shortest_text(number);
}
std::string shown(std::int64_t number) {
  return std::to_string(number);
}

template <class Number>
std::string range_text(Number minimum, Number maximum) {
  const bool open = maximum == std::numeric_limits<Number>::max() ||
                    (std::numeric_limits<Number>::has_infinity && maximum > Number(1e300));
  return open ? "expected at least " + shown(minimum)
              : "expected from " + shown(minimum) + " to " + shown(maximum);
}

template <class Number>
Result<Number> within(std::string_view text, Number value, Number minimum, Number maximum) {
  if (value >= minimum && value <= maximum) return value;
  return Problem{"", std::string(text) + " is out of range", range_text(minimum, maximum)};
}

std::string in_quotes(std::string_view text) {
  return "'" + std::string(text) + "'";
}

}  // namespace

Result<std::int64_t> integer_from(std::string_view text, std::int64_t minimum, std::int64_t maximum) {
  std::int64_t value = 0;
  if (!parse_whole(text, value))
    return Problem{"", in_quotes(text) + " is not an integer", range_text(minimum, maximum)};
  return within(text, value, minimum, maximum);
}

Result<double> number_from(std::string_view text, double minimum, double maximum) {
  double value = 0;
  if (!parse_finite(text, value))
    return Problem{"", in_quotes(text) + " is not a number", range_text(minimum, maximum)};
  return within(text, value, minimum, maximum);
}

Result<Bytes> bytes_from(std::string_view text) {
  const std::optional<Bytes> value = parse_bytes(text);
  if (!value) return Problem{"", in_quotes(text) + " is not a size", "for example 500MB or 8GiB"};
  if (!text.ends_with('B')) {
    const std::string number(text);
    return Problem{"", in_quotes(text) + " has no unit",
                   number + "GiB, " + number + "MB, or " + number + "B for bytes"};
  }
  return *value;
}

Result<std::vector<double>> numbers_from(std::string_view text) {
  std::vector<double> values;
  for (const std::string& word : split(text, ',')) {
    if (!parse_finite(word, values.emplace_back()))
      return Problem{"", in_quotes(text) + " is not a list of numbers", "for example 8,2"};
  }
  return values;
}

Result<std::vector<std::int64_t>> integers_from(std::string_view text, std::int64_t minimum,
                                                std::int64_t maximum) {
  std::vector<std::int64_t> values;
  for (const std::string& word : split(text, ',')) {
    const Result<std::int64_t> value = integer_from(word, minimum, maximum);
    if (!value) return value.problems();
    values.push_back(*value);
  }
  return values;
}

std::string shortest_text(double number) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof text, number);
  return error == std::errc{} ? std::string(text, end) : "?";
}

}  // namespace millrace
