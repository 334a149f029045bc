// Our planner: antichain cuts with replication and placement, ranked by the simulated step. Every cut of a
// space is a candidate; lower bounds leave only few to simulate (docs/planning.md).
#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>

#include "optimizer/chunk_cuts.h"
#include "optimizer/cost_model.h"
#include "optimizer/cut_space.h"
#include "optimizer/layouts.h"
#include "optimizer/pipedream_seeds.h"
#include "optimizer/planner.h"
#include "optimizer/refusal.h"

namespace millrace {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
// A bound this close to the best cannot hide a better cut worth finding.
constexpr double kRounding = 1 - 1e-12;
constexpr double kEqualTimes = 1e-10;
// The asynchronous step is a difference of two runs: its bound may be off by what a round varies.
constexpr double kAsynchronousSlack = 0.9;
// Work limits, in counts so that the same call gives the same plan on any machine.
constexpr long kMostActions = 3'000'000;
constexpr long kMostLargeActions = 1'500'000;  // where not every cut is searched
constexpr long kMostChunkActions = 1'000'000;  // on top, for schedules with several stages per rank
constexpr std::size_t kMostChunkLayouts = 64;
constexpr std::size_t kLikelyChunkCuts = 6;
constexpr std::size_t kImprovedChunkLayouts = 3;
constexpr std::size_t kOrderedPlans = 4;   // whose actions are ordered by their costs
constexpr int kMostOrderedPlaces = 2'000;  // stages x microbatches of them
constexpr long kMostPlaces = 4'000'000;
constexpr std::int64_t kMostTableWork = 100'000'000;  // of all layouts' tables together
constexpr std::int64_t kMostTable = 4'000'000;        // entries of one
constexpr std::size_t kFirstLayouts = 100;            // of each schedule, whose cuts a large search looks at
constexpr int kBisections = 40;
constexpr int kMostClimbs = 8;
constexpr std::size_t kOthers = 8;

struct Found {
  double per_microbatch = kInfinite;
  ScheduleKind kind = ScheduleKind::OneFOneB;
  int microbatches = 1;
  std::vector<CutStage> stages;
};

// What tells two ways of planning apart, whatever the cut.
using Way = std::tuple<int, int, std::vector<int>>;
Way way_of(const Found& found) {
  std::vector<int> replicas;
  for (const CutStage& stage : found.stages) replicas.push_back(static_cast<int>(stage.ranks.size()));
  return {static_cast<int>(found.kind), found.microbatches, std::move(replicas)};
}

class Search {
 public:
  Search(const LayerGraph& graph, const ClusterSpec& cluster, const PlannerOptions& options,
         Effort effort = Effort::Best)
      : effort_(effort),
        allowed_places_(effort == Effort::Quick ? kMostPlaces / 20 : kMostPlaces),
        allowed_actions_(effort == Effort::Quick ? kMostActions / 10 : kMostActions),
        graph_(graph),
        cluster_(cluster),
        options_(options),
        model_(graph, cluster, options.costs),
        orders_(topological_orders(graph)),
        ranks_(options.straight && options.stages > 0 ? options.stages : cluster.num_ranks()) {}

  Result<PlannerAnswer> run() {
    make_seeds();
    make_layouts();
    make_chunked_layouts();
    if (layouts_.empty() && chunked_.empty()) return no_layout();
    make_spaces();
    for (const std::vector<CutStage>& seed : seeds_) consider_everywhere(seed);
    if (small_enough()) {
      search_all();
    } else {
      search_some();
    }
    if (!every_cut_) move_layers();
    search_chunks();
    order_by_costs();
    nothing_fitted_ = best_.stages.empty();
    if (nothing_fitted_) return Problem{"--memory", "no plan fits", ""};
    return answer();
  }
  /// Whether run() failed for want of memory.
  bool nothing_fitted() const { return nothing_fitted_; }

 private:
  // ---- spaces and layouts
  // ------------------------------------------------------------------------------

  void make_seeds() {
    chain_ = has_one_order(graph_);
    if (!chain_) complete_ = CutSpace::complete(model_, orders_.front(), options_.most_states);
    if (!chain_ && !complete_) return;
    seeds_ = pipedream_seeds(graph_, cluster_,
                             chain_ ? static_cast<int>(graph_.nodes.size()) : complete_->states());
  }

  /// The complete space where tables over it can be afforded, else prefixes of orders.
  void make_spaces() {
    if (complete_) {
      spaces_.push_back(std::move(*complete_));
      if (every_cut_ = small_enough(); every_cut_) return;
      spaces_.clear();
    }
    every_cut_ = chain_;
    // PipeDream's cut is a prefix cut of the order in which it takes the layers.
    for (const std::vector<CutStage>& seed : seeds_) {
      std::vector<int> order;
      for (const CutStage& stage : seed) order.insert(order.end(), stage.nodes.begin(), stage.nodes.end());
      if (std::find(orders_.begin(), orders_.end(), order) == orders_.end() && !chain_)
        orders_.push_back(order);
    }
    for (const std::vector<int>& order : orders_) spaces_.push_back(CutSpace::linear(model_, order));
  }

  std::vector<int> microbatch_counts() const {
    if (options_.microbatches > 0) return {options_.microbatches};
    std::vector<int> counts;
    for (int m = 1; m <= 4 * ranks_; m *= 2) counts.push_back(m);
    return counts;
  }

  bool chooses_schedule() const { return !options_.schedule || options_.schedule == ScheduleKind::AutoOrder; }
  /// Of one stage per rank. Those that flush are all the same on a single stage.
  std::vector<ScheduleKind> kinds(std::size_t stages = 2) const {
    if (options_.chunks > 1) return {};
    if (chooses_schedule() && stages == 1) return {ScheduleKind::OneFOneB};
    if (chooses_schedule())
      return {ScheduleKind::OneFOneB, ScheduleKind::GPipe, ScheduleKind::ZeroBubbleH1,
              ScheduleKind::ZeroBubbleH2};
    const ScheduleKind kind = *options_.schedule;
    if (is_v_shaped(kind) || kind == ScheduleKind::Interleaved) return {};
    return {kind};
  }

  double all_compute() const {
    double sum = model_.loss_s(0);
    for (int i = 0; i < static_cast<int>(graph_.nodes.size()); ++i) {
      sum += model_.forward_s(0, i) + model_.backward_s(0, i);
    }
    return sum;
  }

  void make_layouts() {
    const int layers = static_cast<int>(graph_.nodes.size());
    std::vector<std::vector<int>> ways = replications(ranks_, layers, options_);
    for (const std::vector<CutStage>& seed : seeds_) {
      std::vector<int> replicas;
      int sum = 0;
      for (const CutStage& stage : seed) {
        replicas.push_back(static_cast<int>(stage.ranks.size()));
        sum += replicas.back();
      }
      if (sum == ranks_ && allowed(replicas)) ways.push_back(std::move(replicas));
    }
    std::sort(ways.begin(), ways.end(), [](const auto& a, const auto& b) {
      return a.size() != b.size() ? a.size() < b.size() : a > b;
    });
    ways.erase(std::unique(ways.begin(), ways.end()), ways.end());
    for (const std::vector<RankId>& devices : device_orders(cluster_)) {
      for (const std::vector<int>& replicas : ways) {
        for (ScheduleKind kind : kinds(replicas.size())) {
          for (int microbatches : microbatch_counts()) add_layout(kind, microbatches, replicas, devices);
        }
      }
    }
    std::stable_sort(layouts_.begin(), layouts_.end(), [](const Layout& a, const Layout& b) {
      return a.floor_s / a.microbatches < b.floor_s / b.microbatches;
    });
  }

  void make_chunked_layouts() {
    if (options_.chunks == 1) return;
    PlannerOptions options = options_;
    if (chooses_schedule()) options.schedule.reset();
    chunked_ = chunked_layouts(model_, options, microbatch_counts(), ranks_,
                               static_cast<int>(graph_.nodes.size()), all_compute_s_);
  }

  bool allowed(const std::vector<int>& replicas) const {
    if (options_.stages > 0 && static_cast<int>(replicas.size()) != options_.stages) return false;
    return !options_.straight || std::all_of(replicas.begin(), replicas.end(), [](int r) { return r == 1; });
  }

  void add_layout(ScheduleKind kind, int microbatches, const std::vector<int>& replicas,
                  const std::vector<RankId>& devices) {
    if (auto layout = layout_of(kind, microbatches, replicas, devices))
      layouts_.push_back(std::move(*layout));
  }

  std::optional<Layout> layout_of(ScheduleKind kind, int microbatches, const std::vector<int>& replicas,
                                  const std::vector<RankId>& devices) {
    std::vector<std::vector<RankId>> ranks;
    std::size_t next = 0;
    for (int r : replicas) {
      // Round robin leaves no replica without work.
      if (!is_asynchronous(kind) && r > microbatches) return std::nullopt;
      auto& stage = ranks.emplace_back();
      for (int i = 0; i < r; ++i) stage.push_back(devices[next++]);
    }
    Result<Layout> layout =
        make_layout(model_, options_, kind, microbatches, std::move(ranks), all_compute_s_, chain_);
    if (!layout) return std::nullopt;
    return std::move(*layout);
  }

  /// Whether tables over all layouts and spaces can be afforded, so that every cut is a candidate.
  bool small_enough() {
    std::int64_t work = 0;
    bool tables = true;
    for (const Layout& layout : layouts_) {
      for (const CutSpace& space : spaces_) {
        work += layout.stages() * space.pairs();
        tables = tables && static_cast<std::int64_t>(layout.stages()) * space.states() <= kMostTable;
      }
    }
    return tables && work <= (effort_ == Effort::Quick ? kMostTableWork / 20 : kMostTableWork);
  }

  // ---- costs of one stage
  // ------------------------------------------------------------------------------

  // At least what a rank holds: messages that are not sure to cross are left out.
  Bytes memory_of(const CutSpace& space, const Layout& layout, int s, int a, int b, bool recompute) const {
    return StageMemory{.parameters = space.parameters(a, b),
                       .saved = space.saved(a, b),
                       .incoming = s > 0 ? std::max<Bytes>(0, space.next_bytes(a)) : 0,
                       .outgoing = s + 1 < layout.stages() ? std::max<Bytes>(0, space.next_bytes(b)) : 0,
                       .versions = layout.stash.versions[s],
                       .stashed = layout.stash.microbatches[s],
                       .rule_copies = options_.costs.rule_copies,
                       .recompute = recompute}
        .total();
  }
  bool recomputes(const CutSpace& space, const Layout& layout, int s, int a, int b) const {
    if (options_.recompute != Recompute::Auto) return options_.recompute == Recompute::Always;
    const Bytes limit = layout.memory[s];
    return limit > 0 && memory_of(space, layout, s, a, b, false) > limit;
  }
  bool fits(const CutSpace& space, const Layout& layout, int s, int a, int b) const {
    const Bytes limit = layout.memory[s];
    if (limit == 0) return true;
    const bool recompute = options_.recompute != Recompute::Never;
    return memory_of(space, layout, s, a, b, recompute) <= limit ||
           (options_.recompute == Recompute::Auto && memory_of(space, layout, s, a, b, false) <= limit);
  }
  double compute(const CutSpace& space, const Layout& layout, int s, int a, int b) const {
    double slowest = 0;
    const bool again = recomputes(space, layout, s, a, b);
    for (int sheet : layout.sheets[s]) {
      double seconds = space.compute_s(sheet, a, b);
      if (again) seconds += space.forward_s(sheet, a, b) - (b == space.last() ? model_.loss_s(sheet) : 0);
      slowest = std::max(slowest, seconds);
    }
    return slowest;
  }
  double busy(const CutSpace& space, const Layout& layout, int s, int a, int b) const {
    return layout.rounds[s] * compute(space, layout, s, a, b);
  }
  // At least what follows the last backward of the stage on its own ranks.
  double reduce_and_update(const CutSpace& space, const Layout& layout, int s, int a, int b) const {
    const Bytes bytes = space.parameters(a, b);
    double reduce = layout.rings[s].seconds(bytes);
    double least_backward = kInfinite;
    double update = 0;
    for (int sheet : layout.sheets[s]) {
      double backward = space.backward_s(sheet, a, b);
      if (options_.recompute != Recompute::Never) backward += space.forward_s(sheet, a, b);
      least_backward = std::min(least_backward, backward);
      update = std::max(update, model_.update_s_per_byte(sheet) * static_cast<double>(bytes));
    }
    // Overlapped, the reduction cannot start before the backward does.
    if (options_.costs.reduce == ReduceModel::Overlapped) reduce = std::max(0.0, reduce - least_backward);
    return reduce + update;
  }
  // The quickest pair of ranks: a bound must hold whichever replicas meet.
  double hop_bound(const Layout& layout, int s, Bytes bytes) const {
    double least = kInfinite;
    const auto& from = layout.ranks[s];
    const auto& to = layout.ranks[s + 1];
    if (from.size() * to.size() > 64) return 0;
    for (RankId a : from) {
      for (RankId b : to) least = std::min(least, transfer_seconds(cluster_, a, b, bytes));
    }
    return least;
  }

  // ---- every cut of every layout: tables, then branch and bound
  // -----------------------------------------------------------

  void search_all() {
    struct Open {
      const Layout* layout;
      const CutSpace* space;
      double bound;
      std::vector<int> cuts;
    };
    std::vector<Open> open;
    for (const CutSpace& space : spaces_) {
      for (const Layout& layout : layouts_) {
        fill_bottlenecks(space, layout);
        const double bound = std::max(table_[0], layout.floor_s);
        if (bound < kInfinite) open.push_back({&layout, &space, bound, balanced_cuts(space, layout)});
      }
    }
    std::stable_sort(open.begin(), open.end(), [](const Open& a, const Open& b) {
      return a.bound / a.layout->microbatches < b.bound / b.layout->microbatches;
    });
    // The most balanced cut of each layout first: a good plan early makes the bounds bite.
    std::size_t looked = 0;
    for (const Open& o : open) {
      if (!worth(*o.layout, o.bound) && looked >= kOthers) continue;
      ++looked;
      consider(*o.space, *o.layout, o.cuts);
      if (o.space->is_linear()) consider(*o.space, *o.layout, greedy_cuts(*o.space, *o.layout));
    }
    for (const Open& o : open) {
      if (!worth(*o.layout, o.bound)) continue;
      fill_bottlenecks(*o.space, *o.layout);
      cuts_.clear();
      descend(*o.space, *o.layout, 0, 0, 0, 0);
    }
    every_layout_ = true;
    climb_replications();
  }

  /// Where not every replication was a candidate: from the best one to its neighbours while that helps.
  void climb_replications() {
    if (ranks_ <= kRanksForEveryReplication || options_.straight || best_.stages.empty()) return;
    for (int round = 0; round < kMostClimbs; ++round) {
      const Found start = best_;
      std::vector<RankId> devices;
      for (const CutStage& stage : start.stages) {
        devices.insert(devices.end(), stage.ranks.begin(), stage.ranks.end());
      }
      for (const std::vector<int>& replicas : neighbours_of(std::get<2>(way_of(start)))) {
        if (!allowed(replicas)) continue;
        const std::optional<Layout> layout = layout_of(start.kind, start.microbatches, replicas, devices);
        if (!layout || !worth(*layout, layout->floor_s)) continue;
        for (const CutSpace& space : spaces_) {
          fill_bottlenecks(space, *layout);
          if (!worth(*layout, table_[0])) continue;
          if (space.is_linear()) consider(space, *layout, greedy_cuts(space, *layout));
          cuts_.clear();
          descend(space, *layout, 0, 0, 0, 0);
        }
      }
      if (best_.per_microbatch >= start.per_microbatch) break;
    }
  }

  /// One rank from one stage to another; a stage split in two; two stages joined.
  static std::vector<std::vector<int>> neighbours_of(const std::vector<int>& replicas) {
    std::vector<std::vector<int>> result;
    const std::size_t stages = replicas.size();
    for (std::size_t i = 0; i < stages; ++i) {
      for (std::size_t j = 0; j < stages; ++j) {
        if (i == j || replicas[i] == 1) continue;
        result.push_back(replicas);
        --result.back()[i];
        ++result.back()[j];
      }
      for (int first = 1; first < replicas[i]; ++first) {
        result.push_back(replicas);
        result.back()[i] = first;
        result.back().insert(result.back().begin() + static_cast<std::ptrdiff_t>(i) + 1, replicas[i] - first);
      }
      if (i + 1 == stages) continue;
      result.push_back(replicas);
      result.back()[i] += replicas[i + 1];
      result.back().erase(result.back().begin() + static_cast<std::ptrdiff_t>(i) + 1);
    }
    return result;
  }

  double& bottleneck(const CutSpace& space, int s, int a) {
    return table_[static_cast<std::size_t>(s) * static_cast<std::size_t>(space.states()) +
                  static_cast<std::size_t>(a)];
  }

  /// table[s][a]: the least, over all cuts, of the slowest of the stages s.. on the layers behind state a.
  void fill_bottlenecks(const CutSpace& space, const Layout& layout) {
    const int stages = layout.stages();
    table_.assign(static_cast<std::size_t>(stages) * static_cast<std::size_t>(space.states()), kInfinite);
    for (int s = stages - 1; s >= 0; --s) {
      for (int a = 0; a < space.last(); ++a) {
        if (s == 0 && a > 0) break;
        double& best = bottleneck(space, s, a);
        if (s + 1 == stages) {
          if (fits(space, layout, s, a, space.last())) best = busy(space, layout, s, a, space.last());
        } else if (space.is_linear() && options_.recompute != Recompute::Auto) {
          best = bisected(space, layout, s, a);
        } else {
          for (int b = a + 1; b < space.last(); ++b) {
            if (!space.nested(a, b)) continue;
            if (layout.rounds[s] * space.compute_s(layout.sheets[s][0], a, b) >= best) {
              if (layout.sheets[s].front() == 0) break;  // states are numbered by sheet 0
              continue;
            }
            if (!fits(space, layout, s, a, b)) continue;
            best = std::min(best, std::max(busy(space, layout, s, a, b), bottleneck(space, s + 1, b)));
          }
        }
      }
    }
  }

  /// One stage grows with its end and the rest shrinks: the best end is where they meet.
  double bisected(const CutSpace& space, const Layout& layout, int s, int a) {
    int low = a + 1;
    int high = space.last() - (layout.stages() - s - 1);  // a layer for each stage that follows
    if (low > high) return kInfinite;
    const auto grown = [&](int b) {
      return !fits(space, layout, s, a, b) || busy(space, layout, s, a, b) >= bottleneck(space, s + 1, b);
    };
    while (low < high) {
      const int middle = low + (high - low) / 2;
      grown(middle) ? high = middle : low = middle + 1;
    }
    double best = kInfinite;
    for (int b : {low - 1, low}) {
      if (b <= a || !fits(space, layout, s, a, b)) continue;
      best = std::min(best, std::max(busy(space, layout, s, a, b), bottleneck(space, s + 1, b)));
    }
    return best;
  }

  std::vector<int> balanced_cuts(const CutSpace& space, const Layout& layout) {
    std::vector<int> cuts;
    int a = 0;
    for (int s = 0; s + 1 < layout.stages(); ++s) {
      double best = kInfinite;
      int cut = -1;
      for (int b = a + 1; b < space.last(); ++b) {
        if (!space.nested(a, b) || !fits(space, layout, s, a, b)) continue;
        const double slowest = std::max(busy(space, layout, s, a, b), bottleneck(space, s + 1, b));
        if (slowest < best) std::tie(best, cut) = std::pair(slowest, b);
      }
      cuts.push_back(cut);
      a = cut;
    }
    return cuts;
  }

  bool worth(const Layout& layout, double bound) const {
    const double slack = is_asynchronous(layout.kind) ? kAsynchronousSlack : 1;
    return bound < kInfinite && slack * bound / layout.microbatches < best_.per_microbatch * kRounding;
  }

  // Stage s gets layers from state `a` on. `fill`: at least what passes before its first forward; `drain`: at
  // least what follows its last backward upstream.
  void descend(const CutSpace& space, const Layout& layout, int s, int a, double fill, double drain) {
    const bool asynchronous = is_asynchronous(layout.kind);
    const int last = space.last();
    if (s + 1 == layout.stages()) {
      if (!fits(space, layout, s, a, last)) return;
      const double own = asynchronous ? 0 : reduce_and_update(space, layout, s, a, last);
      if (worth(layout, fill + busy(space, layout, s, a, last) + std::max(drain, own))) {
        consider(space, layout, cuts_);
      }
      return;
    }
    const bool ordered = space.is_linear() || model_.num_sheets() == 1;
    for (int b = a + 1; b < last; ++b) {
      if (places_ >= allowed_places_ || cut_short_) return;
      ++places_;
      if (!space.nested(a, b)) continue;
      if (!fits(space, layout, s, a, b)) {
        if (space.is_linear()) break;
        continue;
      }
      const double stage = busy(space, layout, s, a, b);
      const double own = asynchronous ? 0 : reduce_and_update(space, layout, s, a, b);
      if (!worth(layout, fill + stage)) {
        if (ordered) break;
        continue;
      }
      if (!worth(layout, fill + stage + std::max(drain, own))) continue;
      double next_fill = 0;
      double next_drain = 0;
      // A split backward leaves the weight gradients for the drain.
      const bool whole = layout.kind == ScheduleKind::OneFOneB || layout.kind == ScheduleKind::GPipe;
      if (!asynchronous && space.next_bytes(b) >= 0) {
        const double hop = hop_bound(layout, s, space.next_bytes(b));
        double forward = 0;
        double backward = 0;
        for (int sheet : layout.sheets[s]) {
          forward = std::max(forward, space.forward_s(sheet, a, b));
          backward = std::max(backward, space.backward_s(sheet, a, b));
        }
        // With different devices the first microbatch may meet a quicker replica.
        if (layout.sheets[s].size() > 1) forward = backward = 0;
        next_fill = fill + forward + hop;
        if (whole) next_drain = backward + hop + std::max(drain, own);
      }
      if (!worth(layout, next_fill + bottleneck(space, s + 1, b) + next_drain)) continue;
      cuts_.push_back(b);
      descend(space, layout, s + 1, b, next_fill, next_drain);
      cuts_.pop_back();
    }
  }

  // ---- some cuts of the likely layouts
  // ---------------------------------------------------------------------

  void search_some() {
    allowed_actions_ = std::min(allowed_actions_, kMostLargeActions);
    add_free_replications();
    struct Open {
      const Layout* layout;
      const CutSpace* space;
      std::vector<int> cuts;
      double bound;
    };
    std::vector<Open> open;
    std::size_t looked = 0;
    std::map<ScheduleKind, std::size_t> looked_at;
    for (const Layout& layout : layouts_) {
      if (looked_at[layout.kind]++ >= kFirstLayouts) continue;
      for (const CutSpace& space : spaces_) {
        if (!space.is_linear()) continue;
        double reached = kInfinite;
        std::vector<int> cuts = greedy_cuts(space, layout, &reached);
        if (reached < kInfinite) open.push_back({&layout, &space, std::move(cuts), reached});
      }
    }
    std::stable_sort(open.begin(), open.end(), [](const Open& a, const Open& b) {
      return a.bound / a.layout->microbatches < b.bound / b.layout->microbatches;
    });
    looked = 0;
    for (const Open& o : open) {
      if (!worth(*o.layout, o.layout->floor_s) && looked >= kOthers) continue;
      ++looked;
      consider(*o.space, *o.layout, o.cuts);
    }
    for (const Open& o : open) {
      if (way_of(best_) !=
          Way{static_cast<int>(o.layout->kind), o.layout->microbatches, replicas_of(*o.layout)})
        continue;
      improve(*o.space, *o.layout, o.cuts, kInfinite);
      break;
    }
  }

  static std::vector<int> replicas_of(const Layout& layout) {
    std::vector<int> replicas;
    for (const auto& stage : layout.ranks) replicas.push_back(static_cast<int>(stage.size()));
    return replicas;
  }

  /// The cut of least X such that every stage ends its own work, the fill before and the tail behind it
  /// counted, within X. Taking as many layers as X allows is best for the stages that follow
  /// (docs/planning.md).
  std::vector<int> greedy_cuts(const CutSpace& space, const Layout& layout, double* reached = nullptr) {
    double low = layout.floor_s;
    double high = 4 * all_slowest(space) * layout.microbatches + 1;
    std::vector<int> best;
    double found = kInfinite;
    if (std::vector<int> cuts; take_greedily(space, layout, high, cuts)) {
      best = cuts;
      found = high;
      for (int i = 0; i < kBisections && high - low > 1e-7 * high; ++i) {
        const double middle = (low + high) / 2;
        if (take_greedily(space, layout, middle, cuts)) {
          best = cuts;
          found = high = middle;
        } else {
          low = middle;
        }
      }
    }
    if (reached != nullptr) *reached = found;
    return best;
  }

  double all_slowest(const CutSpace& space) const {
    double slowest = 0;
    for (int k = 0; k < model_.num_sheets(); ++k)
      slowest = std::max(slowest, space.compute_s(k, 0, space.last()));
    return slowest;
  }

  bool take_greedily(const CutSpace& space, const Layout& layout, double limit,
                     std::vector<int>& cuts) const {
    const bool asynchronous = is_asynchronous(layout.kind);
    cuts.clear();
    int a = 0;
    double fill = 0;
    for (int s = 0; s < layout.stages(); ++s) {
      const int most = space.last() - (layout.stages() - s - 1);
      const auto within = [&](int b) {
        return fits(space, layout, s, a, b) &&
               fill + busy(space, layout, s, a, b) + reduce_and_update(space, layout, s, a, b) <= limit;
      };
      if (s + 1 == layout.stages()) return within(space.last());
      int low = a;  // the last end that is within
      for (int high = most; low < high;) {
        const int middle = low + (high - low + 1) / 2;
        within(middle) ? low = middle : high = middle - 1;
      }
      double hop = 0;
      for (; low > a; --low) {
        hop = transfer_seconds(cluster_, layout.ranks[s].back(), layout.ranks[s + 1].front(),
                               space.live_bytes(low));
        if (fill + hop * std::min(layout.rounds[s], layout.rounds[s + 1]) <= limit) break;
      }
      if (low <= a) return false;
      if (!asynchronous && layout.chunks == 1) fill += compute(space, layout, s, a, low) + 2 * hop;
      cuts.push_back(low);
      a = low;
    }
    return false;
  }

  /// Replications from the other side: the fewest ranks with which all layers end within X, for the least X
  /// that needs no more ranks than there are. Linear orders only; sizes in steps above 64 ranks.
  void add_free_replications() {
    if (options_.straight || options_.stages > 0 || ranks_ <= kRanksForEveryReplication) return;
    const CutSpace* space = nullptr;
    for (const CutSpace& s : spaces_) space = space == nullptr && s.is_linear() ? &s : space;
    if (space == nullptr) return;
    for (ScheduleKind kind : kinds()) {
      for (int microbatches : microbatch_counts()) {
        std::vector<int> replicas = free_replication(*space, kind, microbatches);
        if (replicas.empty()) continue;
        const std::size_t before = layouts_.size();
        for (const std::vector<RankId>& devices : device_orders(cluster_)) {
          add_layout(kind, microbatches, replicas, devices);
        }
        // These are looked at first.
        std::rotate(layouts_.begin(), layouts_.begin() + static_cast<std::ptrdiff_t>(before), layouts_.end());
      }
    }
  }

  std::vector<int> free_replication(const CutSpace& space, ScheduleKind kind, int microbatches) const {
    const int most = is_asynchronous(kind) ? ranks_ : std::min(ranks_, microbatches);
    std::vector<int> sizes;
    for (int r = 1; r <= most; r = ranks_ <= 64 ? r + 1 : std::max(r + 1, r * 3 / 2 / 2 * 2))
      sizes.push_back(r);
    std::vector<RingCost> rings;
    for (int r : sizes) {
      std::vector<RankId> ranks;
      for (int i = 0; i < r; ++i) ranks.push_back(RankId(i));
      rings.emplace_back(cluster_, ranks);
    }
    constexpr int kPlaces = 1000;
    const int stride = (space.last() + kPlaces - 1) / kPlaces;
    std::vector<int> places;
    for (int at = 0; at < space.last(); at += stride) places.push_back(at);
    places.push_back(space.last());
    const int n = static_cast<int>(places.size());
    const double rank_update = model_.update_s_per_byte(0);
    std::vector<int> need(n), taken(n), size(n);
    const auto feasible = [&](double limit) {
      need[n - 1] = 0;
      for (int i = n - 2; i >= 0; --i) {
        need[i] = ranks_ + 1;
        const int a = places[i];
        const double fill = is_asynchronous(kind) ? 0 : space.compute_s(0, 0, a);
        for (std::size_t k = 0; k < sizes.size(); ++k) {
          const int r = sizes[k];
          const double rounds =
              is_asynchronous(kind) ? static_cast<double>(microbatches) / r : (microbatches + r - 1) / r;
          const auto within = [&](int j) {
            const int b = places[j];
            const Bytes bytes = space.parameters(a, b);
            double reduce = rings[k].seconds(bytes);
            if (options_.costs.reduce == ReduceModel::Overlapped)
              reduce = std::max(0.0, reduce - space.backward_s(0, a, b));
            return fill + rounds * space.compute_s(0, a, b) + reduce +
                       rank_update * static_cast<double>(bytes) <=
                   limit;
          };
          int low = i;
          for (int high = n - 1; low < high;) {
            const int middle = low + (high - low + 1) / 2;
            within(middle) ? low = middle : high = middle - 1;
          }
          if (low == i || need[low] + r >= need[i]) continue;
          need[i] = need[low] + r;
          taken[i] = low;
          size[i] = r;
        }
      }
      return need[0] <= ranks_;
    };
    double low = all_compute_s_ * microbatches / ranks_;
    double high = 2 * all_compute_s_ * microbatches + 1;
    if (!feasible(high)) return {};
    for (int i = 0; i < 20; ++i) {
      const double middle = (low + high) / 2;
      feasible(middle) ? high = middle : low = middle;
    }
    feasible(high);
    std::vector<int> replicas;
    for (int i = 0; i < n - 1; i = taken[i]) replicas.push_back(size[i]);
    // Ranks that are left widen the first stages: they fill first.
    const int left = ranks_ - std::accumulate(replicas.begin(), replicas.end(), 0);
    for (int i = 0; i < left; ++i) {
      const auto least = std::min_element(replicas.begin(), replicas.end());
      if (*least >= most) return {};
      ++*least;
    }
    return replicas;
  }

  /// Moves single cuts while that helps.
  void improve(const CutSpace& space, const Layout& layout, std::vector<int> cuts, double known) {
    for (int move = std::max(1, space.states() / 64); move >= 1; move /= 2) {
      for (std::size_t i = 0; i < cuts.size() && !spent(); ++i) {
        for (int step : {-move, move}) {
          std::vector<int> moved = cuts;
          moved[i] += step;
          const int before = i == 0 ? 0 : cuts[i - 1];
          const int after = i + 1 == cuts.size() ? space.last() : cuts[i + 1];
          if (moved[i] <= before || moved[i] >= after) continue;
          if (!space.nested(before, moved[i]) || !space.nested(moved[i], after)) continue;
          const double found = consider(space, layout, moved);
          if (found >= known) continue;
          known = found;
          cuts = moved;
        }
      }
    }
  }

  /// Single layers from one stage to the next or the one before, while that helps: cuts that are no prefix of
  /// any order searched.
  void move_layers() {
    if (best_.stages.size() < 2) return;
    std::vector<std::vector<int>> readers(graph_.nodes.size()), sources(graph_.nodes.size());
    for (const LayerEdge& edge : graph_.edges) {
      readers[edge.producer].push_back(edge.consumer);
      sources[edge.consumer].push_back(edge.producer);
    }
    for (bool moved = true; moved && !spent();) {
      moved = false;
      std::vector<int> stage_of(graph_.nodes.size());
      for (std::size_t s = 0; s < best_.stages.size(); ++s) {
        for (int node : best_.stages[s].nodes) stage_of[node] = static_cast<int>(s);
      }
      for (int node = 0; node < static_cast<int>(stage_of.size()) && !spent(); ++node) {
        const int stage = stage_of[node];
        const auto later = [&](int other) { return stage_of[other] > stage; };
        const auto earlier = [&](int other) { return stage_of[other] < stage; };
        const bool last = stage + 1 == static_cast<int>(best_.stages.size());
        if (!last && std::ranges::all_of(readers[node], later) && move_layer(node, stage, stage + 1)) {
          stage_of[node] = stage + 1;
          moved = true;
        } else if (stage > 0 && std::ranges::all_of(sources[node], earlier) &&
                   move_layer(node, stage, stage - 1)) {
          stage_of[node] = stage - 1;
          moved = true;
        }
      }
    }
  }

  /// Whether the plan with the layer moved is the best now.
  bool move_layer(int node, int from, int to) {
    Found found = best_;
    std::vector<int>& nodes = found.stages[from].nodes;
    if (nodes.size() == 1) return false;
    nodes.erase(std::find(nodes.begin(), nodes.end(), node));
    found.stages[to].nodes.push_back(node);
    model_.sort_by_execution(found.stages[to].nodes);
    const std::size_t layers = best_.stages[from].nodes.size();
    consider(std::move(found));
    return best_.stages[from].nodes.size() != layers;
  }

  // ---- several stages per rank, and orders by cost
  // -----------------------------------------------------------------------------------------------------

  /// Balanced cuts of the likeliest layouts, the best of them improved step by step.
  void search_chunks() {
    finished_ = every_layout_ && !cut_short_ && places_ < allowed_places_;
    cut_short_ = false;
    allowed_actions_ =
        model_.simulated_actions() + (effort_ == Effort::Quick ? kMostChunkActions / 10 : kMostChunkActions);
    struct Tried {
      const Layout* layout;
      const CutSpace* space;
      std::vector<int> cuts;
      double per_microbatch;
    };
    // Cuts that are balanced and no more may send much: prefixes of orders send less than any sets.
    std::vector<CutSpace> orders;
    for (const std::vector<int>& order : orders_) {
      if (!spaces_.front().is_linear()) orders.push_back(CutSpace::linear(model_, order));
    }
    std::vector<const CutSpace*> spaces;
    for (const std::vector<CutSpace>* some : {&orders, &spaces_}) {
      for (const CutSpace& space : *some) spaces.push_back(&space);
    }
    std::vector<Tried> tried;
    std::size_t looked = 0;
    for (const Layout& layout : chunked_) {
      if (!worth(layout, layout.floor_s)) continue;
      if (looked++ == kMostChunkLayouts) break;
      for (const CutSpace* at : spaces) {
        const CutSpace& space = *at;
        for (std::vector<int>& cuts : chunk_cuts(space, layout)) {
          const double found = consider(space, layout, cuts);
          if (found < kInfinite) tried.push_back({&layout, at, std::move(cuts), found});
        }
      }
    }
    std::stable_sort(tried.begin(), tried.end(),
                     [](const Tried& a, const Tried& b) { return a.per_microbatch < b.per_microbatch; });
    for (std::size_t i = 0; i < tried.size() && i < kImprovedChunkLayouts; ++i) {
      improve(*tried[i].space, *tried[i].layout, tried[i].cuts, tried[i].per_microbatch);
    }
  }

  std::vector<std::vector<int>> chunk_cuts(const CutSpace& space, const Layout& layout) {
    if (space.is_linear()) {
      return likely_chunk_cuts(model_, space, layout, greedy_cuts(space, layout), kLikelyChunkCuts);
    }
    fill_bottlenecks(space, layout);
    if (table_[0] == kInfinite) return {};
    return {balanced_cuts(space, layout)};
  }

  /// The best plans again with the order that list_schedule finds for their costs.
  void order_by_costs() {
    if (!chooses_schedule()) return;
    std::vector<Found> found;
    for (const auto& [way, plan] : by_way_) {
      if (!plan.stages.empty()) found.push_back(plan);
    }
    std::stable_sort(found.begin(), found.end(), better);
    const bool asked = options_.schedule.has_value();
    if (asked) best_ = {};
    cut_short_ = false;
    std::size_t ordered = 0;
    for (Found& plan : found) {
      const auto places = static_cast<long>(plan.stages.size()) * plan.microbatches;
      if (!asked && (plan.stages.size() < 2 || places > kMostOrderedPlaces)) continue;
      if (ordered++ == kOrderedPlans) break;
      plan.kind = ScheduleKind::AutoOrder;
      const double fixed = plan.per_microbatch;
      const Way way = way_of(plan);
      if (consider(std::move(plan)) > fixed * (1 - kEqualTimes) && !asked) by_way_.erase(way);
    }
  }

  // ---- candidates
  // --------------------------------------------------------------------------------------

  std::vector<CutStage> stages_at(const CutSpace& space, const Layout& layout,
                                  const std::vector<int>& cuts) const {
    std::vector<CutStage> stages(layout.stages());
    for (int s = 0; s < layout.stages(); ++s) {
      const int a = s == 0 ? 0 : cuts[s - 1];
      const int b = s + 1 == layout.stages() ? space.last() : cuts[s];
      stages[s].nodes = space.layers(a, b);
      model_.sort_by_execution(stages[s].nodes);
      stages[s].ranks = layout.ranks[s];
      stages[s].recompute = recomputes(space, layout, s, a, b);
    }
    return stages;
  }

  /// Its time for a microbatch; infinite if it is not a plan.
  double consider(const CutSpace& space, const Layout& layout, const std::vector<int>& cuts) {
    if (static_cast<int>(cuts.size()) + 1 != layout.stages() || spent()) return kInfinite;
    if (std::find(cuts.begin(), cuts.end(), -1) != cuts.end()) return kInfinite;
    return consider(
        {.kind = layout.kind, .microbatches = layout.microbatches, .stages = stages_at(space, layout, cuts)});
  }

  /// A seed under every schedule and microbatch count.
  void consider_everywhere(const std::vector<CutStage>& stages) {
    std::vector<int> replicas;
    for (const CutStage& stage : stages) replicas.push_back(static_cast<int>(stage.ranks.size()));
    if (!allowed(replicas) || std::accumulate(replicas.begin(), replicas.end(), 0) != ranks_) return;
    for (ScheduleKind kind : kinds(replicas.size())) {
      for (int m : microbatch_counts()) {
        if (!is_asynchronous(kind) && *std::max_element(replicas.begin(), replicas.end()) > m) continue;
        Found found{.kind = kind, .microbatches = m, .stages = stages};
        for (CutStage& stage : found.stages) stage.recompute = options_.recompute == Recompute::Always;
        consider(std::move(found));
      }
    }
  }

  // Sums round differently under two schedules: equal times are told apart by the plans themselves.
  static bool better(const Found& a, const Found& b) {
    if (b.stages.empty()) return true;
    if (a.per_microbatch < b.per_microbatch * (1 - kEqualTimes)) return true;
    if (a.per_microbatch > b.per_microbatch * (1 + kEqualTimes)) return false;
    const auto simplicity = [](const Found& f) {
      std::vector<std::size_t> sizes;
      std::vector<int> ranks;
      for (const CutStage& stage : f.stages) {
        sizes.push_back(stage.nodes.size());
        for (RankId rank : stage.ranks) ranks.push_back(rank.value);
      }
      const int kind = f.kind == ScheduleKind::OneFOneB ? -1 : static_cast<int>(f.kind);
      return std::tuple(f.stages.size(), kind, f.microbatches, sizes, ranks);
    };
    return simplicity(a) < simplicity(b);
  }

  /// Whether the simulations that may be done are done. The first plan is always looked at.
  bool spent() {
    const bool found = !best_.stages.empty();
    cut_short_ = cut_short_ || (found && effort_ != Effort::Best) ||
                 ((found || effort_ == Effort::Quick) && model_.simulated_actions() > allowed_actions_);
    return cut_short_;
  }

  /// Simulates one candidate and keeps the better: less time, then fewer stages, then earlier cuts.
  double consider(Found found) {
    if (spent()) return kInfinite;
    Result<StepEstimate> estimate = model_.estimate(found.kind, found.microbatches, found.stages);
    if (!estimate) return kInfinite;
    ++simulated_;
    if (!made_to_fit(found, *estimate)) return kInfinite;
    const double per_microbatch = found.per_microbatch = estimate->step_s / found.microbatches;
    Found& of_its_way = by_way_[way_of(found)];
    if (better(found, of_its_way)) of_its_way = found;
    if (better(found, best_)) best_ = std::move(found);
    return per_microbatch;
  }

  /// Whether all stages fit; stages that do not and may, recompute.
  bool made_to_fit(Found& found, StepEstimate& estimate) {
    bool changed = false;
    bool all = true;
    for (int round = 0; round < 2; ++round) {
      all = true;
      for (std::size_t s = 0; s < found.stages.size(); ++s) {
        for (RankId rank : found.stages[s].ranks) {
          const Bytes limit = memory_limit(options_, cluster_, rank);
          if (limit == 0 || estimate.peak_bytes[s] <= limit) continue;
          if (round == 0 && options_.recompute == Recompute::Auto && !found.stages[s].recompute) {
            found.stages[s].recompute = changed = true;
          }
          all = false;
          break;
        }
      }
      if (all || !changed || round == 1) break;
      Result<StepEstimate> again = model_.estimate(found.kind, found.microbatches, found.stages);
      if (!again) return false;
      estimate = std::move(*again);
    }
    return all;
  }

  // ---- answers
  // -----------------------------------------------------------------------------------------

  Plan plan_of(const Found& found) {
    Plan plan;
    plan.model = graph_.model;
    plan.schedule = found.kind;
    plan.versions = is_asynchronous(plan.schedule) ? VersionPolicy::Stash : VersionPolicy::Flush;
    plan.microbatches = found.microbatches;
    for (const CutStage& cut : found.stages) {
      PlanStage& stage = plan.stages.emplace_back();
      for (int node : cut.nodes) stage.layers.push_back(graph_.nodes[node].name);
      stage.ranks = cut.ranks;
      stage.recompute = cut.recompute;
    }
    plan.planner = "millrace plan";
    return model_.predict(plan);
  }

  Result<PlannerAnswer> answer() {
    PlannerAnswer answer;
    answer.plan = plan_of(best_);
    if (Problems problems = validate(answer.plan, graph_); !problems.empty()) return problems;
    std::vector<const Found*> others;
    for (const auto& [way, found] : by_way_) {
      if (!found.stages.empty() && way != way_of(best_)) others.push_back(&found);
    }
    std::stable_sort(others.begin(), others.end(),
                     [](const Found* a, const Found* b) { return better(*a, *b); });
    if (others.size() > kOthers) others.resize(kOthers);
    for (const Found* found : others) other_.push_back(*found);
    answer.search = {.spaces = static_cast<int>(spaces_.size()),
                     .states = largest_space(),
                     .every_cut = every_cut_,
                     .every_replication = ranks_ <= kRanksForEveryReplication,
                     .finished = finished_,
                     .layouts = static_cast<int>(layouts_.size()),
                     .chunked = static_cast<int>(chunked_.size()),
                     .simulated = simulated_,
                     .floor_s = floor()};
    return answer;
  }

 public:
  /// After run: where the seconds go, for the answer and the others.
  void explain(PlannerAnswer& answer, Reasons reasons) {
    const auto parts = [&](const Found& found) {
      const Result<StepBreakdown> made = model_.breakdown(found.kind, found.microbatches, found.stages);
      return made ? *made : StepBreakdown{};
    };
    answer.parts = parts(best_);
    for (const Found& found : other_) {
      answer.others.push_back({plan_of(found), parts(found)});
      if (reasons == Reasons::RunnerUp) break;
    }
  }

 private:
  int largest_space() const {
    int states = 0;
    for (const CutSpace& space : spaces_) states = std::max(states, space.states());
    return states;
  }
  double floor() const {
    double least = kInfinite;
    for (const std::vector<Layout>* layouts : {&layouts_, &chunked_}) {
      for (const Layout& layout : *layouts) least = std::min(least, layout.floor_s / layout.microbatches);
    }
    return least < kInfinite ? least * best_.microbatches : 0;
  }

  Result<PlannerAnswer> no_layout() const {
    return Problem{"--microbatches",
                   "no way to spread " + std::to_string(ranks_) + " ranks over " +
                       (options_.stages > 0 ? std::to_string(options_.stages) + " stages" : "the stages") +
                       " gives every replica a microbatch",
                   "give at least as many microbatches as the widest stage has replicas, or more stages"};
  }

  const Effort effort_;
  const long allowed_places_;
  long allowed_actions_;
  const LayerGraph& graph_;
  const ClusterSpec& cluster_;
  const PlannerOptions& options_;
  CostModel model_;
  const double all_compute_s_ = all_compute();  ///< of one microbatch
  std::vector<std::vector<int>> orders_;
  const int ranks_;  // straight with a stage count uses that many
  bool chain_ = false;
  bool every_cut_ = false;
  bool every_layout_ = false;
  bool cut_short_ = false;
  bool finished_ = false;
  bool nothing_fitted_ = false;
  std::optional<CutSpace> complete_;
  std::vector<CutSpace> spaces_;
  std::vector<std::vector<CutStage>> seeds_;
  std::vector<Layout> layouts_;
  std::vector<Layout> chunked_;
  std::vector<double> table_;
  std::vector<int> cuts_;
  Found best_;
  std::map<Way, Found> by_way_;
  std::vector<Found> other_;
  int simulated_ = 0;
  long places_ = 0;
};

Problems check_profiles(const LayerGraph& graph, const ClusterSpec& cluster, const PlannerOptions& options) {
  Problems problems;
  for (const auto& [kind, profile] : options.costs.profiles) {
    std::vector<std::string> have, want;
    for (const LayerNode& node : profile.nodes) have.push_back(node.name);
    for (const LayerNode& node : graph.nodes) want.push_back(node.name);
    std::sort(have.begin(), have.end());
    std::sort(want.begin(), want.end());
    if (have != want || profile.microbatch != graph.microbatch) {
      problems.push_back({"kind " + kind, "its profile is of another model or microbatch",
                          "profile " + graph.model + " with microbatch " + std::to_string(graph.microbatch) +
                              " on a device of this kind"});
    }
  }
  for (const DeviceKind& kind : cluster.kinds) {
    if (!kind.profile.empty() && !options.costs.profiles.contains(kind.name)) {
      problems.push_back({"kind " + kind.name, "its profile " + kind.profile + " was not read", ""});
    }
  }
  return problems;
}

Problems check_options(const LayerGraph& graph, const ClusterSpec& cluster, const PlannerOptions& options) {
  Problems problems = check_profiles(graph, cluster, options);
  const int layers = static_cast<int>(graph.nodes.size());
  const int ranks = cluster.num_ranks();
  if (layers == 0) problems.push_back({"profile", "has no layers", "profile a model with layers"});
  if (ranks < 1) problems.push_back({"cluster", "has no ranks", "give --ranks N"});
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

Result<PlannerAnswer> answer_of(const LayerGraph& graph, const ClusterSpec& cluster,
                                const PlannerOptions& options, std::optional<Reasons> reasons) {
  if (Problems problems = check_options(graph, cluster, options); !problems.empty()) return problems;
  if (Result<std::vector<int>> order = graph.topological_order(); !order) return order.problems();
  Search search(graph, cluster, options);
  Result<PlannerAnswer> answer = search.run();
  if (answer && reasons) search.explain(*answer, *reasons);
  if (answer || !search.nothing_fitted()) return answer;
  return nothing_fits(graph, cluster, options,
                      [&](const ClusterSpec& other_cluster, const PlannerOptions& other,
                          Effort effort) -> std::optional<Plan> {
                        if (!check_options(graph, other_cluster, other).empty()) return std::nullopt;
                        Result<PlannerAnswer> found = Search(graph, other_cluster, other, effort).run();
                        if (!found) return std::nullopt;
                        return std::move(found->plan);
                      });
}

}  // namespace

Result<Plan> plan_layers(const LayerGraph& graph, const ClusterSpec& cluster, const PlannerOptions& options) {
  Result<PlannerAnswer> answer = answer_of(graph, cluster, options, std::nullopt);
  if (!answer) return answer.problems();
  return std::move(answer->plan);
}

Result<PlannerAnswer> explain_plan(const LayerGraph& graph, const ClusterSpec& cluster,
                                   const PlannerOptions& options, Reasons reasons) {
  Result<PlannerAnswer> answer = answer_of(graph, cluster, options, reasons);
  if (!answer || reasons == Reasons::RunnerUp) return answer;
  ClusterSpec unlimited = cluster;
  unlimited.memory_per_rank = 0;
  for (DeviceKind& kind : unlimited.kinds) kind.memory = 0;
  PlannerOptions free = options;
  free.memory_per_rank = 0;
  if (unlimited.to_yaml() == cluster.to_yaml() && options.memory_per_rank == 0) return answer;
  const Result<PlannerAnswer> faster = answer_of(graph, unlimited, free, reasons);
  const auto per_microbatch = [](const Plan& plan) { return plan.predicted_step_s / plan.microbatches; };
  if (faster && per_microbatch(faster->plan) < per_microbatch(answer->plan) * (1 - kEqualTimes)) {
    answer->ignoring_memory = PlanCandidate{faster->plan, faster->parts};
  }
  return answer;
}

}  // namespace millrace
