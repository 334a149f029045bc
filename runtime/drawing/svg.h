// Helpers of all SVG pictures: escaping, round ticks, short numbers, colours. LibTorch-free.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/text.h"

namespace millrace {

/// Escapes text for elements and attributes; control characters become spaces.
std::string escape_xml(std::string_view text);

/// Round numbers that cover [low, high] in about `count` steps: first tick, step.
std::pair<double, double> round_ticks(double low, double high, int count);
/// Returns all round ticks in [low, high]; `low` alone if there is no range.
std::vector<double> ticks_between(double low, double high, int count);
/// "1.5", "20", "1e+06": short.
std::string short_number(double value);

/// Returns `text`, or as many of its first characters as `most` allows with "…" after them.
std::string clipped(const std::string& text, std::size_t most);

/// The place of a legend's entry: where it begins, and its line from 0.
struct LegendPlace {
  double x = 0;
  int line = 0;
};
/// Lays entries of these widths out from `left` on, `gap` apart, in as many lines as end before `right`.
/// An entry that is wider than a line has one for itself.
std::vector<LegendPlace> legend_places(const std::vector<double>& widths, double left, double right,
                                       double gap);

struct Colour {
  double red = 0, green = 0, blue = 0;  ///< 0..255
};
Colour parse_colour(const char* hex);  ///< "#rrggbb"
std::string to_hex(const Colour& colour);
/// Returns the mixture with `share` of b and the rest of a.
Colour mixed(const Colour& a, const Colour& b, double share);

}  // namespace millrace
