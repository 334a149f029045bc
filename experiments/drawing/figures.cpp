#include "experiments/drawing/figures.h"

#include <cmath>

#include "runtime/base/text.h"

namespace millrace {

std::string figure(double value) {
  if (!std::isfinite(value)) return "–";
  const double size = std::abs(value);
  if (size < 99.95) return printed(size < 0.9995 ? "%.3f" : size < 9.995 ? "%.2f" : "%.1f", value);
  if (size >= 1e15) return printed("%.3g", value);
  std::string digits = printed("%.0f", size);
  for (std::size_t at = digits.size(); at > 3;) digits.insert(at -= 3, ",");
  return (value < 0 ? "-" : "") + digits;
}

std::string duration_figure(double seconds) {
  const double size = std::abs(seconds);
  if (size >= 0.9995 || size == 0) return figure(seconds) + " s";
  return size >= 0.9995e-3 ? figure(seconds * 1e3) + " ms" : figure(seconds * 1e6) + " µs";
}

}  // namespace millrace
