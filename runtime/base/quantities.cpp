#include "runtime/base/quantities.h"

#include <charconv>
#include <cmath>

#include "runtime/base/text.h"

#include <utility>

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

namespace {

struct ByteUnit {
  std::string_view name;
  double factor;
};
constexpr ByteUnit kByteUnits[] = {{"", 1},
                                   {"B", 1},
                                   {"kB", 1e3},
                                   {"KB", 1e3},
                                   {"MB", 1e6},
                                   {"GB", 1e9},
                                   {"TB", 1e12},
                                   {"KiB", 1024.0},
                                   {"MiB", 1048576.0},
                                   {"GiB", 1073741824.0},
                                   {"TiB", 1099511627776.0}};

}  // namespace

std::optional<Bytes> parse_bytes(std::string_view text) {
  // "16e9" is a number: the unit starts after the longest numeric prefix.
  double number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || !std::isfinite(number) || number < 0) return std::nullopt;
  std::string_view unit = text.substr(stop - text.data());
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  for (const ByteUnit& known : kByteUnits) {
    if (known.name != unit) continue;
    const double bytes = std::round(number * known.factor);
    if (bytes >= 9.2e18) return std::nullopt;
    return static_cast<Bytes>(bytes);
  }
  return std::nullopt;
}

std::optional<double> parse_duration(std::string_view text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {{"", 1},     {"s", 1},    {"m", 60},
                                                            {"min", 60}, {"h", 3600}, {"d", 86400}};
  double number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || !std::isfinite(number) || number < 0) return std::nullopt;
  const std::string_view unit = text.substr(stop - text.data());
  for (const auto& [name, seconds] : kUnits)
    if (name == unit) return number * seconds;
  return std::nullopt;
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

std::string interval_text(double seconds, double spread, int blocks) {
  return "the profile's " + (blocks > 0 ? std::to_string(blocks) + " " : std::string()) +
         printed("blocks differ by +-%.1f %%: ", spread * 100) + duration_text(seconds * (1 - spread)) +
         " to " + duration_text(seconds * (1 + spread)) + ", no prediction is closer";
}

}  // namespace millrace
