// PipeDream's files: graph.txt / gpus=N.txt, *_conf.json, driver YAML (docs/formats.md).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace millrace {

/// One line of graph.txt: times in milliseconds for one minibatch, sizes in bytes.
struct PipeDreamNode {
  std::string id;
  std::string description;
  double forward_ms = 0;
  double backward_ms = 0;
  std::vector<double> activation_sizes;  ///< several for an output that is a tuple; their sum counts
  bool activation_is_list = false;       ///< the file writes [a; b]; to_text keeps that form
  std::string activation_text;           ///< as found in the file
  double parameter_bytes = 0;
  std::optional<int> stage;

  double activation_bytes() const;  ///< the sum
};

/// A PipeDream graph: nodes, and edges (source, target) as node indices. Both are in file order, which
/// decides ties in the planner. Parallel edges are kept.
struct PipeDreamGraph {
  std::vector<PipeDreamNode> nodes;
  std::vector<std::pair<int, int>> edges;
};

/// Reads graph.txt with every quirk of the format. Errors have file:line:col. to_text of an unchanged graph
/// returns the original bytes, with "
/// " instead of "\r
/// ".
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
