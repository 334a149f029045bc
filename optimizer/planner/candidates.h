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
  /// Raises the total so that `actions` more are possible, whatever earlier parts of the search used up.
  void reserve(long actions);
  /// Returns whether the allowed actions are used up. Before the first plan that fits it returns false.
  bool spent();

  /// Returns whether a plan of this layout would be the best if it took `bound` seconds for its microbatches.
  bool worth(const Layout& layout, double bound) const;

  /// Simulates a plan and returns its seconds for a microbatch. Infinite: it is no plan, it does not fit, or
  /// the allowed actions are used up.
  double consider(const CutSpace& space, const Layout& layout, const std::vector<int>& cuts);
  double consider(Found found);
  /// Does the same as consider(), even if the allowed actions are used up.
  double consider_always(Found found);

  bool has_limits() const { return has_limits_; }  ///< returns whether any rank has a memory limit
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
  long looked_at_ = 0;  // layers of plans that did not fit; they count as work, like actions
  Found best_;
  std::map<Way, Found> by_way_;
  int simulated_ = 0;
};

}  // namespace millrace
