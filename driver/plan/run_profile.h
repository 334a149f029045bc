// A profile corrected by a run, for `millrace plan --from-run`. LibTorch-free.
#pragma once

#include <string>

#include "runtime/base/result.h"
#include "runtime/plan/layer_graph.h"
#include "runtime/plan/plan.h"
#include "runtime/trace/trace.h"

namespace millrace {

/// `profile` with the layers of each stage scaled so that they add up to what the run in `folder` measured of
/// that stage (plan.json and trace.rank<k>.json; docs/planning.md, 1.7), and with its seconds of an update.
/// The distance between layers of one stage stays the profile's. Problem: the folder has no plan or traces,
/// they are of another model, or a stage was not traced.
Result<LayerGraph> profile_of_run(const LayerGraph& profile, const std::string& folder);
LayerGraph scaled_to(const LayerGraph& profile, const Plan& plan,
                     const std::vector<std::vector<Span>>& spans_by_rank, Problems& problems);

}  // namespace millrace
