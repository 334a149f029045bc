// The cost of a round of job arrays under a plan, for arrays of any sizes. LibTorch-free.
#pragma once

#include <map>
#include <memory>

#include "optimizer/cost/cost_model.h"

namespace millrace {

/// Returns `costs` with the profiles of all kinds of devices converted to arrays of `jobs` jobs. Problem: a
/// profile does not know this size.
Result<CostOptions> costs_of_array(const CostOptions& costs, int jobs);

/// The profile of arrays of one size, with its cost model for a number of them at once.
struct SizedModel {
  LayerGraph graph;
  std::unique_ptr<CostModel> model;  ///< keeps a reference to `graph`
};

struct RoundCost {
  double step_s = 0;
  double idle = 0;  ///< share of the ranks' time in which they do not compute
};

/// Cost models for each size and number of arrays, made on first use. It keeps references to its arguments.
class RoundCosts {
 public:
  RoundCosts(const LayerGraph& profile, const ClusterSpec& cluster, const CostOptions& costs)
      : profile_(profile), cluster_(cluster), costs_(costs) {}

  /// Returns the model for `arrays` arrays of `jobs` jobs at once. Problem: the profiles do not know this
  /// size.
  Result<SizedModel*> of(int jobs, int arrays);

  /// Returns the cost of a step of the round with the stages, schedule and microbatches of `plan`. It
  /// simulates the schedule that training runs; each array's actions take the time of its size.
  Result<RoundCost> cost(const Plan& plan, const PlanRound& round);

  /// Returns a lower bound of the seconds of an array of `jobs` jobs for `microbatches`: all computing is
  /// spread over all ranks, and no rank waits.
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
