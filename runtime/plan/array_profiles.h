// The profiles in a profile: of job arrays, the same model measured with several jobs, and what lies between;
// of the turns of a step.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/result.h"
#include "runtime/plan/layer_graph.h"

namespace millrace {

/// Jobs of the arrays that were measured, ascending; the profile's own first.
std::vector<int> measured_sizes(const LayerGraph& profile);
bool is_measured(const LayerGraph& profile, int jobs);

/// Returns the profile of an array of `jobs`: as it was measured, or on the straight line between the
/// measured sizes next to it (bytes rounded up). The graph stands by itself, without `arrays`. Problem:
/// fewer or more jobs than any array that was measured.
Result<LayerGraph> profile_of_array(const LayerGraph& profile, int jobs);

// These functions read and write the list of arrays in a profile's file. `where` names the list in
// messages: "profile.json, arrays".
std::vector<LayerGraph> profiles_from(const Json& list, const std::string& where, Problems& problems);
Json profiles_json(const std::vector<LayerGraph>& profiles);
/// Arrays or turns of another model, microbatch, precision or device, with other layers, or with arrays or
/// turns of their own; arrays that are not in order; a layer whose parameters not exactly one turn trains.
Problems inner_profile_problems(const LayerGraph& profile, const std::string& name);

}  // namespace millrace
