// Nested profiles. `arrays` has the same model measured as job arrays; `turns` has the turns of a step.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/result.h"
#include "runtime/plan/layer_graph.h"

namespace millrace {

/// Returns the measured numbers of jobs, ascending: the profile's own number, then those of its `arrays`.
std::vector<int> measured_sizes(const LayerGraph& profile);
bool is_measured(const LayerGraph& profile, int jobs);

/// Returns the profile of a job array of `jobs` members, without nested `arrays`. If that size was not
/// measured, each cost is interpolated linearly between the two nearest measured sizes, and bytes are rounded
/// up. Returns an error if `jobs` is below the smallest or above the largest measured size.
Result<LayerGraph> profile_of_array(const LayerGraph& profile, int jobs);

// The functions below read and write the lists of a profile's file, for LayerGraph::parse and to_json.
/// Reads the profiles of a JSON list and adds errors to `problems`. `where` is the list's location for
/// messages: "profile.json, arrays".
std::vector<LayerGraph> profiles_from(const Json& list, const std::string& where, Problems& problems);
Json profiles_json(const std::vector<LayerGraph>& profiles);
/// Returns an error for each array or turn that does not fit the profile: another model, microbatch,
/// precision or device, other layers, or nested arrays or turns. Arrays must be in ascending order of jobs.
/// Exactly one turn must train the parameters of each layer. `name` is the file, for messages.
Problems inner_profile_problems(const LayerGraph& profile, const std::string& name);

}  // namespace millrace
