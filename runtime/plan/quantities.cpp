#include "runtime/plan/quantities.h"

#include <cmath>

#include "runtime/base/text.h"

namespace millrace {
std::string bytes_text(Bytes bytes) {
  const double value = static_cast<double>(bytes);
  if (value < 1024) return std::to_string(bytes) + " B";
  const char* const units[] = {"KiB", "MiB", "GiB", "TiB"};
  double shown = value / 1024;
  std::size_t unit = 0;
  while (shown >= 1024 && unit < 3) shown /= 1024, ++unit;
  return printed(shown < 10 ? "%.2f %s" : shown < 100 ? "%.1f %s" : "%.0f %s", shown, units[unit]);
}

std::string ranks_text(const std::vector<RankId>& ranks) {
  if (ranks.empty()) return "no rank";
  if (ranks.size() == 1) return "rank " + std::to_string(ranks.front().value);
  bool run = true;
  for (std::size_t i = 1; i < ranks.size(); ++i) run = run && ranks[i].value == ranks[i - 1].value + 1;
  if (run) return "ranks " + std::to_string(ranks.front().value) + "–" + std::to_string(ranks.back().value);
  std::string list;
  for (RankId rank : ranks) list += (list.empty() ? "" : ", ") + std::to_string(rank.value);
  return "ranks " + (list.size() > 18 ? list.substr(0, list.rfind(',', 16)) + ", …" : list);
}

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds)) return "n/a";
  const double size = std::abs(seconds);
  if (size >= 1 || size == 0) return printed("%.4g s", seconds);
  return size >= 1e-3 ? printed("%.4g ms", seconds * 1e3) : printed("%.4g µs", seconds * 1e6);
}

}  // namespace millrace
