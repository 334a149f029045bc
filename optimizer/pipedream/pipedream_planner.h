// PipeDream's planner, and its graphs as our profiles. LibTorch-free.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/plan/layer_graph.h"
#include "runtime/plan/pipedream_formats.h"

namespace millrace {

/// PipeDream's planner, exact (docs: pipedream mode). Levels innermost first.
struct PipeDreamOptions {
  std::vector<int> machines;
  std::vector<double> bandwidths;  ///< bytes/s, one per level
  bool straight = false;
  bool use_fewer_machines = false;
  std::optional<double> memory_bytes;            ///< set: the memory test is on
  std::optional<double> activation_compression;  ///< unset: transfers are free
  bool as_original = false;  ///< answer with the faults of the original programme (docs/planning.md, 2.2)
};

struct PipeDreamStage {
  double compute_time_s = 0;       ///< seconds on one worker: not divided by the replication
  int replication = 1;             ///< number of replicas, multiplied over all levels
  std::vector<std::string> nodes;  ///< ids, in file order
  /// The replicas' workers. Workers are numbered component by component, innermost level first. Replicas of
  /// an outer level come first: if minibatch i takes replica i modulo `replication`, it stays in a component
  /// that holds several stages.
  std::vector<int> workers{};
};

struct PipeDreamAnswer {
  double single_machine_time_s = 0;
  double data_parallel_time_s = 0;
  double pipeline_time_s = 0;
  std::vector<PipeDreamStage> stages;
};

/// Returns the workers of a stage that takes the components `first` to `first + machines - 1` of a level, in
/// each of the components above. `above` has the first worker of each of these; a component has `below`
/// workers.
std::vector<int> first_workers(const std::vector<int>& above, int first, int machines, int below);

/// Returns the answer of PipeDream's planner. It is deterministic: equal times are decided by fewer stages,
/// then by earlier splits. Problem: level lists that do not match, no plan within memory, and others.
Result<PipeDreamAnswer> plan_pipedream(const PipeDreamGraph& graph, const PipeDreamOptions& options);

/// Returns the time of given stages under the cost model (`nodes` and `replication` are read; times are not),
/// gathered into the levels in the best way. Problem if they are not cuts of the graph or do not fit machines
/// or memory.
Result<double> evaluate_pipedream(const PipeDreamGraph& graph, const PipeDreamOptions& options,
                                  const std::vector<PipeDreamStage>& stages);

/// Converts PipeDream's graph into a profile. Milliseconds become seconds. Each half of the backward becomes
/// one of its two parts. A layer keeps as many bytes as it outputs. A source called `Input*` is no layer: its
/// forward is the time that loading a batch takes (`data_s`). `__getitem__` and the like are ordinary layers.
/// Times of the update and the loss are not in the file. Problem: a cycle or negative numbers.
Result<LayerGraph> layer_graph(const PipeDreamGraph& graph, const std::string& model);
PipeDreamGraph pipedream_graph_of(const LayerGraph& graph);

}  // namespace millrace
