// The plan whose fullest rank holds least: whether anything fits, and what would. LibTorch-free.
#pragma once

#include <optional>
#include <vector>

#include "optimizer/planner/found.h"
#include "optimizer/planner/stage_bounds.h"

namespace millrace {

enum class Fullness {
  Bytes,     ///< of the fullest rank
  OfLimits,  ///< as a share of each rank's own limit
};

enum class Wanted {
  Least,
  AnyThatFits,  ///< the first that is found with a share of at most 1 (Fullness::OfLimits)
};

struct LeastMemory {
  Found plan;                ///< without stages: no layout has a plan
  double worst = kInfinite;  ///< bytes, or the share of a limit
  bool proved = false;       ///< no plan of these layouts and spaces has less
};

/// Over the layouts with one stage per rank every cut of the spaces, by a dynamic programme over what stages
/// hold at least (on a chain: what they hold) and a search below it; of those with several stages per rank
/// balanced ones, improved step by step. Does not depend on any limit, but in OfLimits on their ratios: plan
/// again with `worst` as the limit, and the same plan fits.
LeastMemory least_memory(CostModel& model, const PlannerOptions& options, const std::vector<CutSpace>& spaces,
                         const std::vector<Layout>& layouts, const std::vector<Layout>& chunked,
                         Fullness fullness, Wanted wanted = Wanted::Least);

}  // namespace millrace
