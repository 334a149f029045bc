// Our planner: contiguous cuts of the topological order with replication, ranked by the simulated step.
// Every cut is a candidate; lower bounds leave only few to simulate (docs/planning.md).
#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "optimizer/cost_model.h"
#include "optimizer/planner.h"

namespace millrace {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
// A bound this close to the best cannot hide a better cut worth finding.
constexpr double kRounding = 1 - 1e-12;
constexpr double kEqualTimes = 1e-10;
// The asynchronous step is a difference of two runs: its bound may be off by what a round varies.
constexpr double kAsynchronousSlack = 0.9;
// All ways to replicate are tried up to this many ranks (2^(ranks-1) of them), a choice of them beyond.
constexpr int kRanksForEveryReplication = 10;
// Work limits, in counts so that the same call gives the same plan on any machine.
constexpr long kMostActions = 6'000'000;
constexpr long kMostPlaces = 4'000'000;

// Sums over the topological order: entry b minus entry a is layers [a, b).
struct Prefix {
  std::vector<int> order;
  std::vector<double> forward{0};
  std::vector<double> backward{0};
  std::vector<Bytes> parameters{0};
  std::vector<Bytes> saved{0};
  std::vector<Bytes> next_bytes;  // [b]: of the tensor from layer b-1 to layer b; -1: none

  int layers() const { return static_cast<int>(order.size()); }
  double compute(int a, int b) const { return forward[b] - forward[a] + backward[b] - backward[a]; }
};

Prefix prefix_of(const LayerGraph& graph, std::vector<int> order) {
  Prefix p;
  p.order = std::move(order);
  std::vector<int> place(graph.nodes.size());
  for (int at = 0; at < p.layers(); ++at) {
    const LayerNode& node = graph.nodes[p.order[at]];
    place[p.order[at]] = at;
    p.forward.push_back(p.forward.back() + node.forward_s);
    p.backward.push_back(p.backward.back() + node.backward_s());
    p.parameters.push_back(p.parameters.back() + node.parameter_bytes);
    p.saved.push_back(p.saved.back() + node.saved_bytes);
  }
  p.forward.back() += graph.loss_s;
  p.next_bytes.assign(p.order.size(), -1);
  for (const LayerEdge& edge : graph.edges) {
    if (place[edge.consumer] != place[edge.producer] + 1) continue;
    Bytes& bytes = p.next_bytes[place[edge.consumer]];
    bytes = std::max(bytes, edge.bytes);
  }
  return p;
}

// One way to spread the ranks: replicas of each stage, with what follows from it alone.
struct Layout {
  ScheduleKind kind = ScheduleKind::OneFOneB;
  int microbatches = 1;
  std::vector<std::vector<RankId>> ranks;
  StashCounts stash;
  std::vector<std::vector<double>>
      bottleneck;    // [s][a]: least over cuts of the slowest of stages s.. on layers a..
  double bound = 0;  // of the step, over all cuts

  int stages() const { return static_cast<int>(ranks.size()); }
  double rounds(int s) const {  // microbatches of the replica that has most
    const double r = static_cast<double>(ranks[s].size());
    if (kind == ScheduleKind::PipeDream) return microbatches / r;
    return static_cast<double>((microbatches + static_cast<int>(r) - 1) / static_cast<int>(r));
  }
};

struct Found {
  double per_microbatch = kInfinite;
  const Layout* layout = nullptr;
  std::vector<int> cuts;  // first layer of each stage but the first
};

class Search {
 public:
  Search(const LayerGraph& graph, const ClusterSpec& cluster, const PlannerOptions& options, Prefix prefix)
      : graph_(graph),
        cluster_(cluster),
        options_(options),
        prefix_(std::move(prefix)),
        model_(graph, cluster),
        memory_(options.memory_per_rank > 0 ? options.memory_per_rank : cluster.memory_per_rank),
        ranks_(options.straight && options.stages > 0 ? options.stages : cluster.num_ranks()) {}

  Result<Plan> run() {
    make_layouts();
    if (layouts_.empty()) return no_layout();
    std::stable_sort(layouts_.begin(), layouts_.end(), [](const Layout& a, const Layout& b) {
      return a.bound / a.microbatches < b.bound / b.microbatches;
    });
    // The most balanced cut of each layout first: a good plan early makes the bounds bite.
    for (const Layout& layout : layouts_) {
      if (worth(layout, layout.bound)) consider(layout, balanced_cuts(layout));
    }
    for (const Layout& layout : layouts_) {
      if (!worth(layout, layout.bound)) continue;
      cuts_.clear();
      descend(layout, 0, 0, 0, 0);
    }
    if (best_.layout == nullptr) return nothing_fits();
    return plan();
  }

 private:
  // ---- layouts
  // ------------------------------------------------------------------------------------------------

  std::vector<int> microbatch_counts() const {
    if (options_.microbatches > 0) return {options_.microbatches};
    std::vector<int> counts;
    for (int m = 1; m <= 4 * ranks_; m *= 2) counts.push_back(m);
    return counts;
  }

  std::vector<ScheduleKind> kinds() const {
    if (options_.schedule) return {*options_.schedule};
    return {ScheduleKind::OneFOneB, ScheduleKind::GPipe};
  }

  void make_layouts() {
    for (const std::vector<int>& replicas : replications()) {
      for (ScheduleKind kind : kinds()) {
        for (int microbatches : microbatch_counts()) add_layout(kind, microbatches, replicas);
      }
    }
  }

  // Every way to give each stage at least one rank, fewer stages first; for many ranks the even ways and
  // those with one wide first or last stage.
  std::vector<std::vector<int>> replications() const {
    std::vector<std::vector<int>> result;
    for (int stages = 1; stages <= std::min(ranks_, prefix_.layers()); ++stages) {
      if (options_.stages > 0 && stages != options_.stages) continue;
      if (options_.straight && stages != ranks_) continue;
      std::vector<int> replicas;
      if (ranks_ <= kRanksForEveryReplication) {
        compose(ranks_, stages, replicas, result);
      } else {
        choose(ranks_, stages, result);
      }
    }
    return result;
  }

  static void compose(int ranks, int stages, std::vector<int>& replicas,
                      std::vector<std::vector<int>>& result) {
    if (stages == 0) {
      if (ranks == 0) result.push_back(replicas);
      return;
    }
    for (int r = ranks - stages + 1; r >= 1; --r) {
      replicas.push_back(r);
      compose(ranks - r, stages - 1, replicas, result);
      replicas.pop_back();
    }
  }

  static void choose(int ranks, int stages, std::vector<std::vector<int>>& result) {
    std::vector<int> even(stages, ranks / stages);
    for (int s = 0; s < ranks % stages; ++s) ++even[s];
    std::vector<std::vector<int>> picked{even};
    for (int wide : stages == 1 ? std::vector<int>{} : std::vector<int>{0, stages - 1}) {
      for (int narrow = 1; narrow * (stages - 1) < ranks; narrow *= 2) {
        std::vector<int> replicas(stages, narrow);
        replicas[wide] = ranks - narrow * (stages - 1);
        picked.push_back(std::move(replicas));
      }
    }
    std::sort(picked.begin() + 1, picked.end(), std::greater<>());
    picked.erase(std::unique(picked.begin(), picked.end()), picked.end());
    result.insert(result.end(), picked.begin(), picked.end());
  }

  void add_layout(ScheduleKind kind, int microbatches, const std::vector<int>& replicas) {
    Layout layout{.kind = kind, .microbatches = microbatches};
    PipelineShape shape{.microbatches = microbatches};
    int rank = 0;
    for (int r : replicas) {
      // Round robin leaves no replica without work.
      if (kind != ScheduleKind::PipeDream && r > microbatches) return;
      auto& ranks = layout.ranks.emplace_back();
      for (int i = 0; i < r; ++i) ranks.push_back(RankId(rank++));
    }
    shape.ranks_of_stage = layout.ranks;
    Result<StashCounts> stash = model_.stash(kind, shape);
    if (!stash) return;
    layout.stash = std::move(*stash);
    fill_bottlenecks(layout);
    layouts_.push_back(std::move(layout));
  }

  Bytes memory_of(const Layout& layout, int s, int a, int b) const {
    return stage_memory(prefix_.parameters[b] - prefix_.parameters[a], prefix_.saved[b] - prefix_.saved[a],
                        layout.stash.versions[s], layout.stash.microbatches[s]);
  }
  bool fits(const Layout& layout, int s, int a, int b) const {
    return memory_ == 0 || memory_of(layout, s, a, b) <= memory_;
  }
  double busy(const Layout& layout, int s, int a, int b) const {
    return layout.rounds(s) * prefix_.compute(a, b);
  }

  void fill_bottlenecks(Layout& layout) const {
    const int layers = prefix_.layers();
    const int stages = layout.stages();
    layout.bottleneck.assign(stages, std::vector<double>(layers + 1, kInfinite));
    for (int s = stages - 1; s >= 0; --s) {
      for (int a = s; a < layers; ++a) {
        double& best = layout.bottleneck[s][a];
        for (int b = s + 1 == stages ? layers : a + 1; b <= layers; ++b) {
          if (!fits(layout, s, a, b)) break;
          const double rest = s + 1 == stages ? 0 : layout.bottleneck[s + 1][b];
          best = std::min(best, std::max(busy(layout, s, a, b), rest));
        }
      }
    }
    layout.bound = layout.bottleneck[0][0];
  }

  std::vector<int> balanced_cuts(const Layout& layout) const {
    std::vector<int> cuts;
    int a = 0;
    for (int s = 0; s + 1 < layout.stages(); ++s) {
      double best = kInfinite;
      int cut = a + 1;
      for (int b = a + 1; b < prefix_.layers() && fits(layout, s, a, b); ++b) {
        const double slowest = std::max(busy(layout, s, a, b), layout.bottleneck[s + 1][b]);
        if (slowest < best) std::tie(best, cut) = std::pair(slowest, b);
      }
      cuts.push_back(cut);
      a = cut;
    }
    return cuts;
  }

  // ---- branch and bound
  // -----------------------------------------------------------------------------------------

  bool worth(const Layout& layout, double bound) const {
    const double slack = layout.kind == ScheduleKind::PipeDream ? kAsynchronousSlack : 1;
    return bound < kInfinite && slack * bound / layout.microbatches < best_.per_microbatch * kRounding;
  }

  double reduce_and_update(const Layout& layout, int s, int a, int b) const {
    const Bytes bytes = prefix_.parameters[b] - prefix_.parameters[a];
    return all_reduce_seconds(cluster_, layout.ranks[s], bytes) +
           graph_.update_s_per_byte * static_cast<double>(bytes);
  }

  // Stage s gets layers from `a` on. `fill`: at least what passes before its first forward; `drain`: at least
  // what follows its last backward upstream.
  void descend(const Layout& layout, int s, int a, double fill, double drain) {
    const bool asynchronous = layout.kind == ScheduleKind::PipeDream;
    if (s + 1 == layout.stages()) {
      if (!fits(layout, s, a, prefix_.layers())) return;
      const double own = asynchronous ? 0 : reduce_and_update(layout, s, a, prefix_.layers());
      if (worth(layout, fill + busy(layout, s, a, prefix_.layers()) + std::max(drain, own))) {
        consider(layout, cuts_);
      }
      return;
    }
    for (int b = a + 1; b < prefix_.layers() && places_ < kMostPlaces; ++b) {
      ++places_;
      if (!fits(layout, s, a, b)) break;
      const double own = asynchronous ? 0 : reduce_and_update(layout, s, a, b);
      if (!worth(layout, fill + busy(layout, s, a, b) + std::max(drain, own))) break;
      double next_fill = 0;
      double next_drain = 0;
      if (!asynchronous && prefix_.next_bytes[b] >= 0) {
        const double hop = transfer_bound(layout, s, prefix_.next_bytes[b]);
        next_fill = fill + prefix_.forward[b] - prefix_.forward[a] + hop;
        next_drain = prefix_.backward[b] - prefix_.backward[a] + hop + std::max(drain, own);
      }
      if (!worth(layout, next_fill + layout.bottleneck[s + 1][b] + next_drain)) continue;
      cuts_.push_back(b);
      descend(layout, s + 1, b, next_fill, next_drain);
      cuts_.pop_back();
    }
  }

  // The quickest pair of ranks: a bound must hold whichever replicas meet.
  double transfer_bound(const Layout& layout, int s, Bytes bytes) const {
    double least = kInfinite;
    for (RankId from : layout.ranks[s]) {
      for (RankId to : layout.ranks[s + 1])
        least = std::min(least, transfer_seconds(cluster_, from, to, bytes));
    }
    return least;
  }

  std::vector<CutStage> stages_at(const Layout& layout, const std::vector<int>& cuts) const {
    std::vector<CutStage> stages(layout.stages());
    for (int s = 0; s < layout.stages(); ++s) {
      const int a = s == 0 ? 0 : cuts[s - 1];
      const int b = s + 1 == layout.stages() ? prefix_.layers() : cuts[s];
      stages[s].nodes.assign(prefix_.order.begin() + a, prefix_.order.begin() + b);
      stages[s].ranks = layout.ranks[s];
    }
    return stages;
  }

  // Sums round differently under two schedules: equal times are told apart by the plans themselves.
  bool better(double per_microbatch, const Layout& layout, const std::vector<int>& cuts) const {
    if (per_microbatch < best_.per_microbatch * (1 - kEqualTimes)) return true;
    if (per_microbatch > best_.per_microbatch * (1 + kEqualTimes)) return false;
    const auto simplicity = [](const Layout& l, const std::vector<int>& c) {
      return std::tuple(l.stages(), l.kind == ScheduleKind::OneFOneB ? 0 : 1, l.microbatches, c);
    };
    return simplicity(layout, cuts) < simplicity(*best_.layout, best_.cuts);
  }

  // Simulates one candidate and keeps the better: less time, then fewer stages, then earlier cuts.
  void consider(const Layout& layout, const std::vector<int>& cuts) {
    if (best_.layout != nullptr && model_.simulated_actions() > kMostActions) return;
    const Result<StepEstimate> estimate =
        model_.estimate(layout.kind, layout.microbatches, stages_at(layout, cuts));
    if (!estimate) return;
    const Bytes peak = *std::max_element(estimate->peak_bytes.begin(), estimate->peak_bytes.end());
    if (memory_ > 0 && peak > memory_) return;
    const double per_microbatch = estimate->step_s / layout.microbatches;
    if (best_.layout != nullptr && !better(per_microbatch, layout, cuts)) return;
    best_ = {per_microbatch, &layout, cuts};
  }

  // ---- answers
  // ----------------------------------------------------------------------------------------------------

  Result<Plan> plan() {
    Plan plan;
    plan.model = graph_.model;
    plan.schedule = best_.layout->kind;
    plan.versions = plan.schedule == ScheduleKind::PipeDream ? VersionPolicy::Stash : VersionPolicy::Flush;
    plan.microbatches = best_.layout->microbatches;
    for (const CutStage& cut : stages_at(*best_.layout, best_.cuts)) {
      PlanStage& stage = plan.stages.emplace_back();
      for (int node : cut.nodes) stage.layers.push_back(graph_.nodes[node].name);
      stage.ranks = cut.ranks;
    }
    plan.planner = "millrace plan";
    plan = predict(plan, graph_, cluster_);
    if (Problems problems = validate(plan, graph_); !problems.empty()) return problems;
    return plan;
  }

  Result<Plan> no_layout() const {
    return Problem{"--microbatches",
                   "no way to spread " + std::to_string(ranks_) + " ranks over " +
                       (options_.stages > 0 ? std::to_string(options_.stages) + " stages" : "the stages") +
                       " gives every replica a microbatch",
                   "give at least as many microbatches as the widest stage has replicas, or more stages"};
  }

  // The least memory that some cut of some layout needs on its fullest rank.
  Result<Plan> nothing_fits() const {
    Bytes least = std::numeric_limits<Bytes>::max();
    for (const Layout& layout : layouts_) least = std::min(least, least_memory(layout));
    return Problem{"--memory",
                   "no plan fits " + std::to_string(memory_) + " bytes per rank; the smallest needs " +
                       std::to_string(least),
                   "give more memory or ranks, or a smaller microbatch"};
  }

  Bytes least_memory(const Layout& layout) const {
    const int layers = prefix_.layers();
    constexpr Bytes kNone = std::numeric_limits<Bytes>::max();
    std::vector<Bytes> rest(layers + 1, kNone);
    rest[layers] = 0;
    for (int s = layout.stages() - 1; s >= 0; --s) {
      std::vector<Bytes> next(layers + 1, kNone);
      for (int a = s; a < layers; ++a) {
        for (int b = a + 1; b <= layers; ++b) {
          if (rest[b] == kNone) continue;
          next[a] = std::min(next[a], std::max(memory_of(layout, s, a, b), rest[b]));
        }
      }
      rest = std::move(next);
    }
    return rest[0];
  }

  const LayerGraph& graph_;
  const ClusterSpec& cluster_;
  const PlannerOptions& options_;
  const Prefix prefix_;
  CostModel model_;
  const Bytes memory_;
  const int ranks_;  // straight with a stage count uses that many
  std::vector<Layout> layouts_;
  std::vector<int> cuts_;
  Found best_;
  long places_ = 0;
};

Problems check_options(const LayerGraph& graph, const ClusterSpec& cluster, const PlannerOptions& options) {
  Problems problems;
  const int layers = static_cast<int>(graph.nodes.size());
  const int ranks = cluster.num_ranks();
  if (layers == 0) problems.push_back({"profile", "has no layers", "profile a model with layers"});
  if (ranks < 1 || cluster.levels.empty()) problems.push_back({"cluster", "has no ranks", "give --ranks N"});
  if (options.microbatches < 0) problems.push_back({"--microbatches", "is below 0", "0 chooses"});
  if (options.stages < 0) problems.push_back({"--stages", "is below 0", "0 chooses"});
  if (options.stages > layers) {
    problems.push_back(
        {"--stages",
         std::to_string(options.stages) + " stages, but the model has " + std::to_string(layers) + " layers",
         "a stage holds at least one layer"});
  }
  if (options.stages > ranks) {
    problems.push_back(
        {"--stages",
         std::to_string(options.stages) + " stages, but the cluster has " + std::to_string(ranks) + " ranks",
         "a stage has at least one rank"});
  }
  if (options.straight && options.stages == 0 && ranks > layers) {
    problems.push_back({"--straight",
                        "one stage for each of " + std::to_string(ranks) + " ranks, but the model has " +
                            std::to_string(layers) + " layers",
                        "give fewer ranks, or allow replication"});
  }
  return problems;
}

}  // namespace

Result<Plan> plan_layers(const LayerGraph& graph, const ClusterSpec& cluster, const PlannerOptions& options) {
  if (Problems problems = check_options(graph, cluster, options); !problems.empty()) return problems;
  Result<std::vector<int>> order = graph.topological_order();
  if (!order) return order.problems();
  return Search(graph, cluster, options, prefix_of(graph, std::move(*order))).run();
}

}  // namespace millrace
