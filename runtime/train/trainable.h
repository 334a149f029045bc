// Checks of a run before it starts.
#pragma once

#include <vector>

#include "runtime/base/result.h"
#include "runtime/model/stage_layout.h"
#include "runtime/plan/plan.h"
#include "runtime/train/train_options.h"

namespace millrace {

/// Returns every reason why arrays of these layouts cannot be trained with `options` by `ranks` ranks under
/// `plan`; none if they can. `options.jobs` has every job. `scores`: the run scores its weights
/// (WeightsScore). No side effects; the result is the same on all ranks.
Problems training_problems(const std::vector<StageLayout>& layouts, const Plan& plan,
                           const TrainOptions& options, bool scores, int ranks);

/// Throws ConfigError if there are problems.
void refuse(const Problems& problems);

}  // namespace millrace
