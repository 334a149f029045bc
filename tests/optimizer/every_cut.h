// Graphs of layers for tests, and the best plan over all their cuts found the slow way.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "optimizer/pipedream/pipedream_planner.h"
#include "optimizer/planner/layouts.h"
#include "optimizer/planner/planner.h"
#include "runtime/base/check.h"
#include "runtime/base/random.h"
#include "tests/optimizer/random_layers.h"

namespace millrace {

inline constexpr double kNoPlan = std::numeric_limits<double>::infinity();

inline void join(LayerGraph& graph, int from, int to) {
  graph.edges.push_back({from, to, graph.nodes[from].name, graph.nodes[from].activation_bytes});
}

/// The k-th graph over `layers` layers: bit e says whether the e-th pair i < j is an edge.
inline LayerGraph graph_of_bits(RandomStream& random, int layers, std::uint64_t bits) {
  LayerGraph graph = random_layers(random, layers);
  int e = 0;
  for (int j = 1; j < layers; ++j) {
    for (int i = 0; i < j; ++i) {
      if ((bits >> e++) & 1) join(graph, i, j);
    }
  }
  return graph;
}

/// First and last of `count` layers from `next` on, joined in series and in parallel at random.
inline std::pair<int, int> join_at_random(RandomStream& random, LayerGraph& graph, int& next, int count) {
  if (count == 1) {
    const int own = next++;
    return {own, own};
  }
  if (count < 4 || random.below(2) == 0) {
    const int half = 1 + static_cast<int>(random.below(static_cast<std::uint64_t>(count - 1)));
    const auto [first, middle] = join_at_random(random, graph, next, half);
    const auto [after, last] = join_at_random(random, graph, next, count - half);
    join(graph, middle, after);
    return {first, last};
  }
  const int first = next++;
  const int left = 1 + static_cast<int>(random.below(static_cast<std::uint64_t>(count - 3)));
  std::vector<std::pair<int, int>> branches{join_at_random(random, graph, next, left),
                                            join_at_random(random, graph, next, count - 2 - left)};
  const int last = next++;
  for (const auto& [begin, end] : branches) {
    join(graph, first, begin);
    join(graph, end, last);
  }
  return {first, last};
}
inline LayerGraph series_parallel_graph(RandomStream& random, int layers) {
  LayerGraph graph = random_layers(random, layers);
  int next = 0;
  join_at_random(random, graph, next, layers);
  return graph;
}

/// All sets of layers that are closed under what they depend on, as bit masks.
inline std::vector<unsigned> closed_sets(const LayerGraph& graph) {
  std::vector<unsigned> sets;
  for (unsigned set = 0; set < 1u << graph.nodes.size(); ++set) {
    const bool closed = std::all_of(graph.edges.begin(), graph.edges.end(), [&](const LayerEdge& e) {
      return !((set >> e.consumer) & 1) || ((set >> e.producer) & 1);
    });
    if (closed) sets.push_back(set);
  }
  return sets;
}

/// Least predicted time of a microbatch over every antichain cut, replication and device order, with one
/// stage per rank.
class EveryCut {
 public:
  EveryCut(const LayerGraph& graph, const ClusterSpec& cluster, const PlannerOptions& options)
      : graph_(graph), cluster_(cluster), options_(options), sets_(closed_sets(graph)) {}

  double least() {
    const auto of_one_stage = [](const ScheduleTraits& row) {
      return row.order == OrderSource::Rule && !is_asynchronous(row.kind) && !needs_chunks(row.kind);
    };
    for (ScheduleKind kind : schedule_kinds(of_one_stage)) {
      if (options_.schedule && *options_.schedule != kind) continue;
      for (const std::vector<RankId>& devices : device_orders(cluster_)) {
        devices_ = devices;
        plan_ = {.model = graph_.model, .schedule = kind, .microbatches = options_.microbatches};
        extend(0, 0);
      }
    }
    return least_;
  }

 private:
  void extend(unsigned placed, int rank) {
    const unsigned all = (1u << graph_.nodes.size()) - 1;
    if (placed == all && rank == cluster_.num_ranks()) score();
    if (placed == all || rank == cluster_.num_ranks()) return;
    for (unsigned next : sets_) {
      if (next == placed || (placed & ~next) != 0) continue;
      PlanStage stage;
      for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
        if (((next & ~placed) >> i) & 1) stage.layers.push_back(graph_.nodes[i].name);
      }
      for (int r = 1; rank + r <= cluster_.num_ranks(); ++r) {
        stage.ranks.push_back(devices_[rank + r - 1]);
        plan_.stages.push_back(stage);
        extend(next, rank + r);
        plan_.stages.pop_back();
      }
    }
  }
  void score() {
    for (const PlanStage& stage : plan_.stages) {
      if (static_cast<int>(stage.ranks.size()) > plan_.microbatches) return;
    }
    const Plan predicted = predict(plan_, graph_, cluster_, options_.costs);
    for (const PlanStage& stage : predicted.stages) {
      if (options_.memory_per_rank > 0 && stage.peak_bytes > options_.memory_per_rank) return;
    }
    least_ = std::min(least_, predicted.predicted_step_s / plan_.microbatches);
  }

  const LayerGraph& graph_;
  const ClusterSpec& cluster_;
  const PlannerOptions& options_;
  const std::vector<unsigned> sets_;
  std::vector<RankId> devices_;
  Plan plan_;
  double least_ = kNoPlan;
};

/// One stage per rank, in an order that does not follow from the costs: what EveryCut goes through.
inline bool is_plain(const Plan& plan) {
  std::size_t places = 0;
  for (const PlanStage& stage : plan.stages) places += stage.ranks.size();
  return plan.schedule != ScheduleKind::AutoOrder && static_cast<int>(places) == plan.num_ranks();
}

inline void expect_best(const Plan& plan, double least, const std::string& what) {
  const double found = plan.predicted_step_s / plan.microbatches;
  EXPECT_LE(found, least * (1 + 1e-9)) << what;
  if (is_plain(plan)) {
    EXPECT_GE(found, least * (1 - 1e-9)) << what;
  }
}

/// A profile of MILLRACE_DATA.
inline Result<LayerGraph> recorded_profile(const char* folder, const std::string& name) {
  const Result<PipeDreamGraph> graph =
      read_pipedream_graph(std::string(folder) + "/pipedream-profiles/" + name + "/graph.txt");
  if (!graph) return graph.problems();
  return layer_graph(*graph, name);
}

inline ClusterSpec ranks(int count, double bandwidth = 1e9) {
  ClusterSpec cluster = ClusterSpec::local(count);
  cluster.levels = {{count, bandwidth, 1e-5}};
  return cluster;
}

/// A quick host of two devices and a slow one of one, joined by a slow network.
inline ClusterSpec mixed_cluster() {
  const auto spec = ClusterSpec::parse(R"(
kinds: [{name: quick, speed: 2, memory: 40MB}, {name: slow, speed: 0.7, copy_bandwidth: 4e9}]
hosts:
  - {name: a, devices: 2, kind: quick, bandwidth: 20e9, latency: 2e-6}
  - {name: b, devices: 1, kind: slow}
network: {bandwidth: 1e9, latency: 4e-5}
)",
                                       "mixed");
  MILLRACE_CHECK(spec.has_value(), to_string(spec.problems()));
  return *spec;
}

}  // namespace millrace
