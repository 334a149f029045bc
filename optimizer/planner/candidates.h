// Plans that were looked at: each made to fit, simulated, and the best of every way kept. LibTorch-free.
#pragma once

#include <map>

#include "optimizer/planner/found.h"
#include "optimizer/planner/refusal.h"
#include "optimizer/planner/stage_bounds.h"

namespace millrace {

/// Keeps references. Work is limited by counts of simulated actions, so that the same call looks at the same
/// plans on any machine.
class Candidates {
 public:
  Candidates(CostModel& model, const PlannerOptions& options, Effort effort);

  /// Allows `actions` more simulated actions, as long as all together stay below the total.
  void allow(long actions);
  /// A part of the search that has so many by itself, whatever the parts before it used up of the total.
  void reserve(long actions);
  /// Whether they are used up. The first plan that fits is always looked at.
  bool spent();

  /// Whether a plan of this layout that takes `bound` seconds for its microbatches would be the best.
  bool worth(const Layout& layout, double bound) const;

  /// Returns the plan's seconds for a microbatch. Infinite: it is no plan, it does not fit, or nothing more
  /// may be looked at.
  double consider(const CutSpace& space, const Layout& layout, const std::vector<int>& cuts);
  double consider(Found found);
  /// Also where nothing more may be looked at.
  double consider_always(Found found);

  bool has_limits() const { return has_limits_; }  ///< of memory
  const Found& best() const { return best_; }
  void forget_best() { best_ = {}; }
  const std::map<Way, Found>& by_way() const { return by_way_; }
  void forget_way(const Way& way) { by_way_.erase(way); }
  int simulated() const { return simulated_; }

 private:
  bool made_to_fit(Found& found);

  CostModel& model_;
  const PlannerOptions& options_;
  const Effort effort_;
  const StageBounds bounds_;
  bool has_limits_ = false;
  long allowed_ = 0;
  long total_ = 0;
  long looked_at_ = 0;  // layers of plans that did not fit
  Found best_;
  std::map<Way, Found> by_way_;
  int simulated_ = 0;
};

}  // namespace millrace
