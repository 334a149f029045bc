#include "optimizer/planner/found.h"

namespace millrace {

std::vector<int> replicas_of(const std::vector<CutStage>& stages) {
  std::vector<int> replicas;
  for (const CutStage& stage : stages) replicas.push_back(static_cast<int>(stage.ranks.size()));
  return replicas;
}

Way way_of(const Found& found) {
  return {static_cast<int>(found.kind), found.microbatches, replicas_of(found.stages)};
}

bool better(const Found& a, const Found& b) {
  if (b.stages.empty()) return true;
  if (a.per_microbatch < b.per_microbatch * (1 - kEqualTimes)) return true;
  if (a.per_microbatch > b.per_microbatch * (1 + kEqualTimes)) return false;
  const auto simplicity = [](const Found& f) {
    std::vector<std::size_t> sizes;
    std::vector<int> ranks;
    for (const CutStage& stage : f.stages) {
      sizes.push_back(stage.nodes.size());
      for (RankId rank : stage.ranks) ranks.push_back(rank.value);
    }
    const int kind = f.kind == ScheduleKind::OneFOneB ? -1 : static_cast<int>(f.kind);
    return std::tuple(f.stages.size(), kind, f.microbatches, sizes, ranks);
  };
  return simplicity(a) < simplicity(b);
}

}  // namespace millrace
