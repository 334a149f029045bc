#include "runtime/schedule/svg.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace millrace {

std::string escape_xml(const std::string& text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::pair<double, double> round_ticks(double low, double high, int count) {
  const double raw = std::max((high - low) / count, 1e-300),
               power = std::pow(10, std::floor(std::log10(raw)));
  double step = 10 * power;
  for (double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw * (1 - 1e-9)) {
      step = factor * power;
      break;
    }
  }
  return {std::ceil(low / step - 1e-9) * step, step};
}

Colour parse_colour(const char* hex) {
  const long value = std::strtol(hex + 1, nullptr, 16);
  return {static_cast<double>(value >> 16 & 255), static_cast<double>(value >> 8 & 255),
          static_cast<double>(value & 255)};
}

std::string to_hex(const Colour& colour) {
  return printed("#%02lx%02lx%02lx", std::lround(colour.red), std::lround(colour.green),
                 std::lround(colour.blue));
}

Colour mixed(const Colour& a, const Colour& b, double share) {
  const auto mix = [&](double x, double y) { return x + (y - x) * share; };
  return {mix(a.red, b.red), mix(a.green, b.green), mix(a.blue, b.blue)};
}

}  // namespace millrace
