// One drawing, several formats: SVG by our own writer, PNG and PDF through cairo. LibTorch-free.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/result.h"

namespace millrace {

struct Ink {
  std::uint8_t red = 0, green = 0, blue = 0;
  double opacity = 1;
};
/// "#1f77b4" at compile time or run time; wrong text is black.
Ink ink(std::string_view hex, double opacity = 1);

enum class Anchor { Start, Middle, End };
struct TextStyle {
  double size = 11;  ///< of the font, in points
  Anchor anchor = Anchor::Start;
  Ink colour{34, 34, 34, 1};
  bool bold = false;
  bool upwards = false;  ///< turned by 90 degrees, read from below
};

/// Points (1/72 inch), origin at the top left, y downwards. The background is white.
class Canvas {
 public:
  virtual ~Canvas() = default;
  virtual void rectangle(double x, double y, double width, double height, Ink fill) = 0;
  virtual void line(double x1, double y1, double x2, double y2, Ink colour, double width = 1) = 0;
  virtual void polyline(const std::vector<std::pair<double, double>>& points, Ink colour,
                        double width = 1.2) = 0;
  virtual void polygon(const std::vector<std::pair<double, double>>& points, Ink fill) = 0;
  /// y is the baseline.
  virtual void text(double x, double y, std::string_view text, const TextStyle& style = {}) = 0;
  /// Ends the drawing and writes the file. Problem: it cannot be written.
  virtual Status finish() = 0;
};

/// Makes a canvas by the file's ending: .svg, .png (`dots_per_inch`) or .pdf. Problem: another ending, a
/// size that is out of range, or a drawing library that fails.
Result<std::unique_ptr<Canvas>> make_canvas(const std::string& path, double width, double height,
                                            double dots_per_inch = 150);

}  // namespace millrace
