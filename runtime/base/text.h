// Formatted text.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

/// snprintf into a string, at most 511 characters: for numbers and markup, never for text of a user.
std::string printed(const char* pattern, auto... values) {
  char buffer[512];
  std::snprintf(buffer, sizeof buffer, pattern, values...);
  return buffer;
}

/// The shortest text that reads back as the same number; "nan", "inf".
void append_number(std::string& to, double value);

/// Returns the parts between the separators, empty parts too: "a,,b" has three, "" has one.
std::vector<std::string> split(std::string_view text, char separator);
/// Returns the parts that are not empty.
std::vector<std::string> words_of(std::string_view text, char separator);

/// Length of the valid UTF-8 sequence at `i`, or 0.
std::size_t utf8_length(std::string_view text, std::size_t i);

/// Text of a file or a user as a terminal may show it: control characters (line ends too) and bytes that are
/// no UTF-8 as \\x1b.
std::string escaped(std::string_view text);

}  // namespace millrace
