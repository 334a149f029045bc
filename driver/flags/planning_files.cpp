#include "driver/flags/planning_files.h"

#include "driver/cli/command_support.h"
#include "driver/cli/home_path.h"
#include "optimizer/pipedream/pipedream_planner.h"
#include "runtime/plan/pipedream_formats.h"

namespace millrace {

Result<LayerGraph> load_profile(const std::string& path) {
  if (!path.ends_with(".txt")) return LayerGraph::load(path);
  const Result<PipeDreamGraph> graph = read_pipedream_graph(path);
  if (!graph) return graph.problems();
  const std::size_t end = path.rfind('/');
  std::string model = end == std::string::npos ? path.substr(0, path.size() - 4) : path.substr(0, end);
  if (const std::size_t slash = model.rfind('/'); slash != std::string::npos) model = model.substr(slash + 1);
  Result<LayerGraph> made = layer_graph(*graph, model);
  if (!made) return about_file(path, made.problems());
  return made;
}

Result<std::map<std::string, LayerGraph>> load_kind_profiles(const ClusterSpec& cluster) {
  std::map<std::string, LayerGraph> profiles;
  Problems problems;
  for (const DeviceKind& kind : cluster.kinds) {
    if (kind.profile.empty()) continue;
    Result<LayerGraph> profile = load_profile(with_home(kind.profile));
    if (profile)
      profiles.emplace(kind.name, *std::move(profile));
    else
      append(problems, profile.problems());
  }
  if (!problems.empty()) return problems;
  return profiles;
}

Result<ClusterSpec> cluster_of(const std::optional<std::string>& file, int ranks) {
  return file ? ClusterSpec::load(*file) : ClusterSpec::local(ranks);
}

}  // namespace millrace
