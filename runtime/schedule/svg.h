// What every SVG picture of ours needs: escaping, round ticks, tints.
#pragma once

#include <string>
#include <utility>

#include "runtime/base/text.h"

namespace millrace {

/// For text and attributes; control characters become spaces.
std::string escape_xml(const std::string& text);

/// Round numbers that cover [low, high] in about `count` steps: first tick, step.
std::pair<double, double> round_ticks(double low, double high, int count);

struct Colour {
  double red = 0, green = 0, blue = 0;  ///< 0..255
};
Colour parse_colour(const char* hex);  ///< "#rrggbb"
std::string to_hex(const Colour& colour);
/// `share` of b, the rest of a.
Colour mixed(const Colour& a, const Colour& b, double share);

}  // namespace millrace
