// The cost of a round of job arrays under a plan, for arrays of any sizes. LibTorch-free.
#pragma once

#include <map>
#include <memory>

#include "optimizer/cost/cost_model.h"

namespace millrace {

/// `costs` with the profiles of kinds of devices for arrays of `jobs`.
Result<CostOptions> costs_of_array(const CostOptions& costs, int jobs);

/// The profile of arrays of one size, with its cost model for a number of them at once.
struct SizedModel {
  LayerGraph graph;
  std::unique_ptr<CostModel> model;  ///< of `graph`, which it refers to
};

struct RoundCost {
  double step_s = 0;
  double idle = 0;  ///< share of the ranks' time in which they do not compute
};

/// Cost models by size and number of arrays, made when they are first asked for. Keeps references.
class RoundCosts {
 public:
  RoundCosts(const LayerGraph& profile, const ClusterSpec& cluster, const CostOptions& costs)
      : profile_(profile), cluster_(cluster), costs_(costs) {}

  /// Arrays of `jobs`, `arrays` of them at once. Problem: the profiles do not know this size.
  Result<SizedModel*> of(int jobs, int arrays);

  /// Seconds of a step of the round under `plan` (its stages, schedule and microbatches): the schedule that
  /// training runs, each array's actions as long as its size takes.
  Result<RoundCost> cost(const Plan& plan, const PlanRound& round);

  /// Returns the least seconds of an array of `jobs` for `microbatches`: as if they were spread over all
  /// ranks without a wait.
  Result<double> compute_s(int jobs, int microbatches);

 private:
  Result<RoundCost> of_equal_arrays(const Plan& plan, int jobs, int arrays);
  Result<RoundCost> of_unequal_arrays(const Plan& plan, const std::vector<int>& sizes);

  const LayerGraph& profile_;
  const ClusterSpec& cluster_;
  const CostOptions& costs_;
  std::map<std::pair<int, int>, SizedModel> models_;
};

}  // namespace millrace
