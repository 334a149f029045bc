// Formatted text.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

/// Formats as snprintf does; a result longer than 511 characters is truncated. Use it for numbers and markup,
/// never for a user's text.
std::string printed(const char* pattern, auto... values) {
  char buffer[512];
  std::snprintf(buffer, sizeof buffer, pattern, values...);
  return buffer;
}

/// Appends the shortest text that reads back as the same number; "nan", "inf".
void append_number(std::string& to, double value);

/// Returns the parts between the separators, empty parts included: "a,,b" has three, "" has one.
std::vector<std::string> split(std::string_view text, char separator);
/// Returns the non-empty parts.
std::vector<std::string> words_of(std::string_view text, char separator);

/// Returns the length in bytes of the valid UTF-8 sequence at `i`; 0 if there is none.
std::size_t utf8_length(std::string_view text, std::size_t i);

/// Returns `text` in a form that is safe on a terminal. Control characters, line ends and invalid UTF-8 bytes
/// become escapes such as \\x1b.
std::string escaped(std::string_view text);
/// Returns the last line that is not blank, escaped and without trailing blanks; empty if there is none.
std::string last_line(std::string_view text);

}  // namespace millrace
