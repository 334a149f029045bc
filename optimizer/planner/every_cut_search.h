// All cuts of a layout, depth first, dropped by bounds. LibTorch-free; docs/planning.md, 1.4.
#pragma once

#include <vector>

#include "optimizer/planner/candidates.h"
#include "optimizer/planner/minimax_table.h"

namespace millrace {

/// Returns StageBounds::least_busy, or infinity if the stage exceeds its memory limit even without messages.
double least_busy_if_it_may_fit(const StageBounds& bounds, const CutSpace& space, const Layout& layout, int s,
                                int a, int b);

/// Fills `table` with the least possible bottleneck of the stages that remain, among stages that fit.
void fill_bottlenecks(MinimaxTable& table, const StageBounds& bounds, const CostModel& model,
                      const CutSpace& space, const Layout& layout);

class EveryCutSearch {
 public:
  EveryCutSearch(Candidates& candidates, const StageBounds& bounds, const CostModel& model)
      : candidates_(candidates), bounds_(bounds), model_(model) {}

  /// Looks at every cut that may be better than the best. Returns false if it was cut short by `places`, the
  /// limit on partial cuts, or by the candidates' limit. Reduces `places` by the partial cuts looked at.
  bool run(const CutSpace& space, const Layout& layout, long& places);

 private:
  void descend(const CutSpace& space, const Layout& layout, int s, int a, double fill, double drain);

  Candidates& candidates_;
  const StageBounds& bounds_;
  const CostModel& model_;
  MinimaxTable table_;
  std::vector<int> cuts_;
  long places_ = 0;  // partial cuts that may still be looked at
  bool cut_short_ = false;
};

}  // namespace millrace
