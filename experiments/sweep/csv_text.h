// Cells of the tables.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

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

/// Columns of the values that rows have by name: those of all rows, in the order in which they first occur.
class ValueColumns {
 public:
  using Values = std::vector<std::pair<std::string, double>>;

  void add(const Values& of_row) {
    for (const auto& [name, value] : of_row) {
      if (std::ranges::find(names_, name) == names_.end()) names_.push_back(name);
    }
  }
  /// ",PREFIXloss,PREFIXtop1"
  std::string header(const std::string& prefix = "") const {
    std::string text;
    for (const std::string& name : names_) text += "," + prefix + csv_cell(name);
    return text;
  }
  /// ",0.5," of a row that has no top1.
  std::string cells(const Values& of_row) const {
    std::string text;
    for (const std::string& name : names_) {
      const auto found = std::ranges::find(of_row, name, &Values::value_type::first);
      text += "," + (found == of_row.end() ? "" : csv_number(found->second));
    }
    return text;
  }

 private:
  std::vector<std::string> names_;
};

}  // namespace millrace
