// Chooses the steps of a run that are traced: some early, some in the middle, some late, because a run's
// first steps are not like its others.
#pragma once

#include <cstdint>
#include <vector>

namespace millrace {

/// Steps from `first` to before `end`.
struct TraceWindow {
  std::int64_t first = 0, end = 0;
  bool holds(std::int64_t step) const { return step >= first && step < end; }
};

/// Returns up to three windows, ascending and apart, with about `count` of the steps from `first` to before
/// `end`. The first window begins at `first`, and the last ends at `end`. No window is shorter than three
/// steps. One window where the run is not twice as long as `count`, or `count` is below six. Empty: nothing
/// to trace.
std::vector<TraceWindow> trace_windows(std::int64_t first, std::int64_t count, std::int64_t end);

}  // namespace millrace
