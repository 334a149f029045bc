// Cells of the tables.
#pragma once

#include <cmath>
#include <string>

#include "runtime/base/text.h"

namespace millrace {

/// Quoted where it must be; line ends become spaces.
inline std::string csv_cell(std::string text) {
  for (char& c : text) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  if (text.find_first_of(",\"") == std::string::npos) return text;
  std::string quoted = "\"";
  for (char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

/// Reads back as it was; empty for what is not a number.
inline std::string csv_number(double value) {
  return std::isfinite(value) ? printed("%.17g", value) : "";
}

}  // namespace millrace
