// What every SVG picture of ours needs: escaping, round ticks, formatted text, tints.
#pragma once

#include <cstdio>
#include <string>
#include <utility>

namespace millrace {

/// For text and attributes; control characters become spaces.
std::string escape_xml(const std::string& text);

/// Round numbers that cover [low, high] in about `count` steps: first tick, step.
std::pair<double, double> round_ticks(double low, double high, int count);

/// snprintf into a string, at most 511 characters: for markup, never for text of a user.
std::string svg_text(const char* pattern, auto... values) {
  char buffer[512];
  std::snprintf(buffer, sizeof buffer, pattern, values...);
  return buffer;
}

struct Colour {
  double red = 0, green = 0, blue = 0;  ///< 0..255
};
Colour parse_colour(const char* hex);  ///< "#rrggbb"
std::string to_hex(const Colour& colour);
/// `share` of b, the rest of a.
Colour mixed(const Colour& a, const Colour& b, double share);

}  // namespace millrace
