// Why this plan: the search, the parts of the step, the runner-up, and the changes that would alter the plan.
#pragma once

#include <string>

#include "optimizer/planner/planner.h"
#include "runtime/base/json.h"

namespace millrace {

/// The answer's plan and the best plan under a changed cluster.
struct Sensitivity {
  std::string change;      ///< "links twice as fast"
  double this_plan_s = 0;  ///< its step
  double best_s = 0;       ///< for as many microbatches, if the planner may choose again
  std::string best_plan;   ///< how the best plan is spread, "" if it is this one
};

/// Plans again with links half and twice as fast, ten times the latency, and half and twice the memory.
std::vector<Sensitivity> sensitivity(const PlannerAnswer& answer, const LayerGraph& graph,
                                     const ClusterSpec& cluster, const PlannerOptions& options);

/// "1-3": ranks of each stage; of many stages the first ones.
std::string replicas_text(const Plan& plan);
/// "2 stages on 1-3 ranks, 1f1b, 4 microbatches".
std::string spread_text(const Plan& plan);
/// One line: the other plan, how much longer it takes, and the terms that make the difference.
std::string comparison_text(const PlannerAnswer& answer, const PlanCandidate& other);
/// Returns a warning where the profile's blocks spread wider than the answer's lead over the next plan.
/// Empty: the lead is clear, or the spread is not known.
std::string lead_text(const PlannerAnswer& answer);

std::string explanation_text(const PlannerAnswer& answer, const std::vector<Sensitivity>& sensitivity);
Json explanation_json(const PlannerAnswer& answer, const std::vector<Sensitivity>& sensitivity);

/// Two plans under the same profile and cluster, term by term.
std::string side_by_side(const std::vector<std::string>& names, const std::vector<PlanCandidate>& plans);
Json side_by_side_json(const std::vector<std::string>& names, const std::vector<PlanCandidate>& plans);

}  // namespace millrace
