// Formatted text.
#pragma once

#include <cstdio>
#include <string>

namespace millrace {

/// snprintf into a string, at most 511 characters: for numbers and markup, never for text of a user.
std::string printed(const char* pattern, auto... values) {
  char buffer[512];
  std::snprintf(buffer, sizeof buffer, pattern, values...);
  return buffer;
}

}  // namespace millrace
