#include "runtime/drawing/svg.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace millrace {

std::string escape_xml(std::string_view text) {
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

constexpr double kNearlyEnough = 0.999;  // of a step: one tick more than was wished does no harm

std::pair<double, double> round_ticks(double low, double high, int count) {
  const double raw = std::max((high - low) / count, 1e-300),
               power = std::pow(10, std::floor(std::log10(raw)));
  double step = 10 * power;
  for (double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw * kNearlyEnough) {
      step = factor * power;
      break;
    }
  }
  return {std::ceil(low / step - 1e-9) * step, step};
}

std::vector<double> ticks_between(double low, double high, int count) {
  if (!(high > low) || !std::isfinite(high - low)) return {low};
  const double step = round_ticks(low, high, std::max(1, count)).second;
  std::vector<double> ticks;
  for (double k = std::ceil(low / step - 1e-9); k * step <= high + step * 1e-9; ++k)
    ticks.push_back(k * step);
  return ticks;
}

std::string short_number(double value) {
  return printed("%.6g", std::abs(value) < 1e-300 ? 0.0 : value);
}

std::string clipped(const std::string& text, std::size_t most) {
  std::size_t characters = 0, cut = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) == 0x80) continue;  // inside of a character
    if (++characters == std::max<std::size_t>(most, 1)) cut = i;
  }
  return characters <= most ? text : text.substr(0, cut) + "…";
}

std::vector<LegendPlace> legend_places(const std::vector<double>& widths, double left, double right,
                                       double gap) {
  std::vector<LegendPlace> places;
  LegendPlace next{.x = left};
  for (const double width : widths) {
    if (next.x > left && next.x + width > right) next = {.x = left, .line = next.line + 1};
    places.push_back(next);
    next.x += width + gap;
  }
  return places;
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
