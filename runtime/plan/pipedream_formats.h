// PipeDream's files: graph.txt / gpus=N.txt, *_conf.json, driver YAML (docs/formats.md).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace millrace {

/// One line of graph.txt, as written: times in milliseconds per minibatch, sizes in bytes.
struct PipeDreamNode {
  std::string id;
  std::string description;
  double forward_ms = 0;
  double backward_ms = 0;
  std::vector<double> activation_sizes;  ///< more than one for a tuple output; readers sum it
  bool activation_is_list = false;       ///< written as [a; b] (so that it round-trips)
  std::string activation_text;           ///< as found in the file
  double parameter_bytes = 0;
  std::optional<int> stage;

  double activation_bytes() const;  ///< the sum
};

/// Nodes in file order, edges (source, target) as node indices in file order; parallel edges kept.
/// File order matters: it fixes the planner's ties.
struct PipeDreamGraph {
  std::vector<PipeDreamNode> nodes;
  std::vector<std::pair<int, int>> edges;
};

/// Problems carry file:line:col. Accepts every quirk of the format; to_text of an unchanged graph is the
/// bytes that were read.
Result<PipeDreamGraph> parse_pipedream_graph(std::string_view text, const std::string& name);
Result<PipeDreamGraph> read_pipedream_graph(const std::string& path);
std::string to_text(const PipeDreamGraph& graph);

struct PipeDreamConf {
  std::vector<int> module_to_stage_map;
  std::map<int, std::vector<int>> stage_to_rank_map;
  std::map<int, int> stage_to_depth_map;
};
Result<PipeDreamConf> parse_pipedream_conf(std::string_view json, const std::string& name);
std::string to_json(const PipeDreamConf& conf);

}  // namespace millrace
