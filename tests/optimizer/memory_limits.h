// Random chains and graphs under random memory limits, beside a search that knows no bounds.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/optimizer/every_cut.h"

namespace millrace {

/// Tensors and workspaces of very different sizes, so that messages decide what fits: a stage may hold less
/// for a layer more.
inline LayerGraph uneven_graph(RandomStream& random, int layers, bool chain) {
  LayerGraph graph = random_layers(random, layers);
  for (LayerNode& node : graph.nodes) {
    node.activation_bytes = static_cast<Bytes>(1) << (8 + random.below(16));
    node.saved_bytes = static_cast<Bytes>(1) << (8 + random.below(14));
    node.parameter_bytes = random.below(3) == 0 ? 0 : static_cast<Bytes>(random.below(2'000'000));
    if (random.below(2) == 0) node.lowered_bytes = node.parameter_bytes / 2;
    if (random.below(3) == 0) node.workspace_bytes = static_cast<Bytes>(random.below(2'000'000));
    if (random.below(2) == 0)
      node.input_workspace_bytes =
          static_cast<Bytes>(random.below(static_cast<std::uint64_t>(node.workspace_bytes) + 1));
    if (random.below(2) == 0) node.between_bytes = static_cast<Bytes>(1) << (8 + random.below(15));
  }
  for (int j = 1; j < layers; ++j) {
    for (int i = 0; i < j; ++i) {
      if (chain ? i + 1 == j : random.below(3) != 0) join(graph, i, j);
    }
  }
  return graph;
}

/// Every antichain cut with every replication, placement, and choice of stages that recompute: what its
/// fullest rank holds, and its time.
class EveryPlan {
 public:
  struct Entry {
    Bytes peak = 0;
    double seconds = 0;
  };

  EveryPlan(const LayerGraph& graph, const ClusterSpec& cluster, const PlannerOptions& options)
      : graph_(graph), cluster_(cluster), options_(options), sets_(closed_sets(graph)) {
    for (const std::vector<RankId>& devices : device_orders(cluster)) {
      devices_ = devices;
      plan_ = {.model = graph.model, .schedule = *options.schedule, .microbatches = options.microbatches};
      extend(0, 0);
    }
  }

  const std::vector<Entry>& entries() const { return entries_; }
  double least_seconds(Bytes limit) const {
    double least = kNoPlan;
    for (const Entry& entry : entries_) {
      if (entry.peak <= limit) least = std::min(least, entry.seconds);
    }
    return least;
  }
  Bytes least_peak() const { return std::ranges::min_element(entries_, {}, &Entry::peak)->peak; }

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
      for (int r = 1; rank + r <= cluster_.num_ranks() && r <= options_.microbatches; ++r) {
        stage.ranks.push_back(devices_[rank + r - 1]);
        plan_.stages.push_back(stage);
        extend(next, rank + r);
        plan_.stages.pop_back();
      }
    }
  }
  void score() {
    const unsigned stages = static_cast<unsigned>(plan_.stages.size());
    for (unsigned again = 0; again < 1u << stages; ++again) {
      if (options_.recompute == Recompute::Never && again != 0) break;
      if (options_.recompute == Recompute::Always && again + 1 != 1u << stages) continue;
      for (unsigned s = 0; s < stages; ++s) plan_.stages[s].recompute = ((again >> s) & 1) != 0;
      const Plan predicted = predict(plan_, graph_, cluster_, options_.costs);
      Entry entry{.seconds = predicted.predicted_step_s};
      for (const PlanStage& stage : predicted.stages) entry.peak = std::max(entry.peak, stage.peak_bytes);
      entries_.push_back(entry);
    }
  }

  const LayerGraph& graph_;
  const ClusterSpec& cluster_;
  const PlannerOptions& options_;
  const std::vector<unsigned> sets_;
  std::vector<RankId> devices_;
  Plan plan_;
  std::vector<Entry> entries_;
};

struct LimitCounts {
  int answered = 0, refused = 0, recomputing = 0;
};

/// The planner's answers for some limits that are peaks of plans, or a byte below: nothing that fits is
/// refused, nothing better is left, and what a refusal says is needed is so, and fits.
inline void expect_best_within_limits(std::uint64_t seed, LimitCounts& counts) {
  RandomStream random(derive_seed(seed, "memory limits"));
  const bool chain = seed % 2 == 0;
  const LayerGraph graph = uneven_graph(random, static_cast<int>(2 + random.below(chain ? 6 : 5)), chain);
  const ClusterSpec cluster = ranks(static_cast<int>(2 + random.below(2)), random.uniform(1e8, 1e10));
  const std::vector<ScheduleKind> kinds = schedule_kinds([](const ScheduleTraits& row) {
    return row.order == OrderSource::Rule && !is_asynchronous(row.kind) && !needs_chunks(row.kind);
  });
  PlannerOptions options{.microbatches = static_cast<int>(2 + random.below(5)),
                         .schedule = kinds[random.below(kinds.size())],
                         .chunks = 1,
                         .recompute = static_cast<Recompute>(random.below(3))};
  options.costs.rule_copies = static_cast<int>(random.below(3));
  options.costs.share_rule_state = random.below(2) == 1;
  const EveryPlan every(graph, cluster, options);
  ASSERT_FALSE(every.entries().empty());
  for (int i = 0; i < 3; ++i) {
    const Bytes peak =
        i == 0 ? every.least_peak() : every.entries()[random.below(every.entries().size())].peak;
    options.memory_per_rank = peak - static_cast<Bytes>(random.below(3) == 0);
    if (options.memory_per_rank == 0) continue;
    const double least = every.least_seconds(options.memory_per_rank);
    const Result<PlannerAnswer> answer = explain_plan(graph, cluster, options, Reasons::RunnerUp);
    const std::string what = "seed " + std::to_string(seed) + ", limit " +
                             std::to_string(options.memory_per_rank) +
                             (answer ? "" : "\n" + to_string(answer.problems()));
    ASSERT_EQ(answer.has_value(), least < kNoPlan) << what;
    if (answer) {
      ++counts.answered;
      EXPECT_NEAR(answer->plan.predicted_step_s, least, 1e-9 * least) << what;
      EXPECT_TRUE(answer->search.finished) << what;
      for (const PlanStage& stage : answer->plan.stages) {
        EXPECT_LE(stage.peak_bytes, options.memory_per_rank) << what;
        counts.recomputing += stage.recompute;
      }
      continue;
    }
    ++counts.refused;
    const std::string need = "the smallest needs " + std::to_string(every.least_peak()) + " ";
    EXPECT_NE(to_string(answer.problems()).find(need), std::string::npos) << need << what;
    options.memory_per_rank = every.least_peak();
    EXPECT_TRUE(plan_layers(graph, cluster, options)) << what;
  }
}

}  // namespace millrace
