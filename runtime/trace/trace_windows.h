// Chooses the steps of a run that are traced: some early, some in the middle, some late, because a run's
// first steps differ from the others.
#pragma once

#include <cstdint>
#include <vector>

namespace millrace {

/// Steps from `first` up to, but not including, `end`.
struct TraceWindow {
  std::int64_t first = 0, end = 0;
  bool holds(std::int64_t step) const { return step >= first && step < end; }
};

/// Returns up to three disjoint windows, ascending, with about `count` of the steps in [first, end). The
/// first window starts at `first`, and the last ends at `end`. No window is shorter than three steps. There
/// is one window if the run is shorter than twice `count`, or `count` is below six. Empty: nothing to trace.
std::vector<TraceWindow> trace_windows(std::int64_t first, std::int64_t count, std::int64_t end);

}  // namespace millrace
