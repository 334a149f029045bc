#include <algorithm>

#include "runtime/schedule/memory_walk.h"
#include "runtime/schedule/simulate.h"

namespace millrace {
namespace {

double bytes_of(const std::vector<double>& bytes, StageId stage) {
  const auto i = static_cast<std::size_t>(stage.value);
  return i < bytes.size() ? bytes[i] : 0;
}

}  // namespace

std::vector<double> peak_bytes_of(const Schedule& schedule, const PipelineShape& shape,
                                  const SimulationOptions& options) {
  const std::vector<std::int64_t> versions = forward_versions(schedule, shape);
  const auto stages = shape.stages_of_ranks();
  std::vector<double> peaks;
  for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
    double bytes = 0;
    for (StageId stage : stages[r])
      bytes += shape.arrays * (bytes_of(options.weight_bytes, stage) + bytes_of(options.state_bytes, stage));
    double peak = bytes;
    walk_memory(schedule.ranks[r], shape, versions, [&](const Action& a, const MemoryStep& step) {
      const double stash = bytes_of(options.stash_bytes, a.stage);
      if (!options.open_bytes.empty()) bytes += step.open * (bytes_of(options.open_bytes, a.stage) - stash);
      bytes += step.stash * stash + step.versions * bytes_of(options.weight_bytes, a.stage);
      peak = std::max(peak, bytes);
    });
    peaks.push_back(peak);
  }
  return peaks;
}

}  // namespace millrace
