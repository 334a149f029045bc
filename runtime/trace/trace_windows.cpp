#include "runtime/trace/trace_windows.h"

#include <algorithm>

namespace millrace {
namespace {

constexpr std::int64_t kMostWindows = 3;
// steps of a window: its first step only marks the start of the second
constexpr std::int64_t kLeastSteps = 3;

}  // namespace

std::vector<TraceWindow> trace_windows(std::int64_t first, std::int64_t count, std::int64_t end) {
  if (count <= 0 || first >= end) return {};
  std::int64_t windows = std::clamp<std::int64_t>(count / kLeastSteps, 1, kMostWindows);
  const bool is_short = (end - first) / 2 < count;
  if (is_short) windows = 1;
  std::vector<TraceWindow> all;
  for (std::int64_t w = 0; w < windows; ++w) {
    const std::int64_t steps = count / windows + (w < count % windows ? 1 : 0);
    const std::int64_t room = end - first - steps;  // possible starts, from `first` on
    const std::int64_t from =
        first + (windows == 1 ? 0 : room / (windows - 1) * w + room % (windows - 1) * w / (windows - 1));
    all.push_back({from, std::min(from + steps, end)});
  }
  return all;
}

}  // namespace millrace
