// Finds the plan whose fullest rank holds least. It tells whether anything fits, and how much memory would
// be needed. LibTorch-free.
#pragma once

#include <optional>
#include <vector>

#include "optimizer/planner/found.h"
#include "optimizer/planner/stage_bounds.h"

namespace millrace {

enum class Fullness {
  Bytes,     ///< bytes of the fullest rank
  OfLimits,  ///< the largest share that a rank fills of its own limit
};

enum class MemoryGoal {
  Least,
  AnyThatFits,  ///< the first plan found with a share of at most 1 (Fullness::OfLimits)
};

struct LeastMemory {
  Found plan;                ///< without stages: no layout has a plan
  double worst = kInfinite;  ///< bytes, or the share of a limit
  bool proved = false;       ///< no plan of these layouts and spaces has less
};

/// Returns the plan whose fullest rank holds least. For layouts with one stage per rank it considers every
/// cut of the spaces. A dynamic programme over lower bounds of the stages' memory (exact on a chain) gives a
/// first plan, and a search looks for better ones. Layouts with several stages per rank get balanced cuts,
/// which are improved step by step. Limits do not matter, except for their ratios in OfLimits: a plan with
/// `worst` as the limit fits.
LeastMemory least_memory(CostModel& model, const PlannerOptions& options, const std::vector<CutSpace>& spaces,
                         const std::vector<Layout>& layouts, const std::vector<Layout>& chunked,
                         Fullness fullness, MemoryGoal wanted = MemoryGoal::Least);

}  // namespace millrace
