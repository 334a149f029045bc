// Profiles and clusters that flags name, as `plan`, `simulate` and emulated jobs read them.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "runtime/base/result.h"
#include "runtime/plan/cluster_spec.h"
#include "runtime/plan/layer_graph.h"

namespace millrace {

/// profile.json, or a PipeDream graph.txt (a name that ends in .txt); the model is then called after its
/// folder.
Result<LayerGraph> load_profile(const std::string& path);

/// The profiles that the cluster file names for its kinds of devices, by the kind's name.
Result<std::map<std::string, LayerGraph>> load_kind_profiles(const ClusterSpec& cluster);

/// The cluster of a file, or `ranks` ranks on this host.
Result<ClusterSpec> cluster_of(const std::optional<std::string>& file, int ranks);

}  // namespace millrace
