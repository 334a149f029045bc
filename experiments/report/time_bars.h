// Stacked bars as HTML, which fits itself to any width: where the time of each rank went.
#pragma once

#include <string>
#include <vector>

namespace millrace {

struct TimePart {
  std::string name;
  std::string colour;  ///< CSS colour
};

struct TimeRow {
  std::string label;
  std::vector<double> seconds;  ///< by part
};

/// One bar a row on one scale, its sum behind it, and a legend of the parts that are to be seen. Text is
/// escaped.
std::string time_bars_html(const std::vector<TimePart>& parts, const std::vector<TimeRow>& rows);

}  // namespace millrace
