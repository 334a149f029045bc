// A plan during the search, and the comparison of two plans. LibTorch-free.
#pragma once

#include <limits>
#include <tuple>
#include <vector>

#include "optimizer/cost/cost_model.h"

namespace millrace {

inline constexpr double kInfinite = std::numeric_limits<double>::infinity();
/// The relative difference up to which two times count as equal: sums round differently under two schedules.
inline constexpr double kEqualTimes = 1e-10;

struct Found {
  double per_microbatch = kInfinite;
  ScheduleKind kind = ScheduleKind::OneFOneB;
  int microbatches = 1;
  std::vector<CutStage> stages;
};

/// The identity of a way of planning, which leaves the cut open: schedule, microbatches, ranks of each stage.
using Way = std::tuple<int, int, std::vector<int>>;
Way way_of(const Found& found);

std::vector<int> replicas_of(const std::vector<CutStage>& stages);

/// Returns whether `a` is better: it takes less time. Equal times are decided by fewer stages, then 1F1B, the
/// order of ScheduleKind, fewer microbatches, and earlier cuts.
bool better(const Found& a, const Found& b);

}  // namespace millrace
