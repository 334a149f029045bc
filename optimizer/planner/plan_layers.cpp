// millrace's planner: antichain cuts with replication and placement, ranked by the simulated step. Every cut
// of a space is a candidate; lower bounds leave only few to simulate (docs/planning.md).
#include <algorithm>
#include <deque>
#include <map>
#include <numeric>

#include "optimizer/planner/candidates.h"
#include "optimizer/planner/chunk_cuts.h"
#include "optimizer/planner/every_cut_search.h"
#include "optimizer/planner/greedy_cuts.h"
#include "optimizer/planner/least_memory.h"
#include "optimizer/planner/local_moves.h"
#include "optimizer/planner/pipedream_seeds.h"
#include "optimizer/planner/planner.h"
#include "optimizer/planner/refusal.h"
#include "runtime/plan/spread_tables.h"

namespace millrace {
namespace {

// Work limits, in counts so that the same call gives the same plan on any machine. A group has the layouts of
// one schedule and one number of stages, and limits of its own. So a search with a given schedule or number
// of stages finds no plan that the search over all groups misses.
constexpr double kGroupActions = 200'000;  // for a group's likeliest cuts, for moving them, and for all cuts
constexpr double kGroupPlaces = 300'000;   // partial cuts of a group
constexpr double kClimbActions = 1'000'000;
constexpr double kChunkActions = 100'000;      // for a group with several stages per rank
constexpr double kChunkedActions = 1'000'000;  // for all groups with several stages per rank
constexpr std::size_t kChunkLayouts = 16;      // layouts looked at in such a group
constexpr std::size_t kLikelyChunkCuts = 8;
constexpr std::size_t kImprovedChunkCuts = 3;
// For each number of stages, the actions of so many plans are ordered by their costs.
constexpr std::size_t kOrderedPlans = 4;
constexpr int kMostOrderedPlaces = 2'000;             // stages x microbatches of such a plan
constexpr std::int64_t kMostTableWork = 100'000'000;  // work for the tables of all layouts together
constexpr std::int64_t kMostTable = 4'000'000;        // entries of one table
constexpr std::size_t kFirstLayouts = 16;             // layouts of each group that a large search looks at
constexpr int kMostClimbs = 8;
constexpr std::size_t kOthers = 8;

/// A layout, a space, and a cut to begin with.
struct Open {
  const Layout* layout = nullptr;
  const CutSpace* space = nullptr;
  double bound = kInfinite;
  std::vector<int> cuts;
  bool searched = false;
};

/// The layouts of one schedule and one number of stages, sorted by their bounds.
struct Group {
  std::vector<Open> open;
  double bound() const { return open.front().bound / open.front().layout->microbatches; }
};

class Search {
 public:
  Search(const LayerGraph& graph, const ClusterSpec& cluster, const PlannerOptions& options,
         Effort effort = Effort::Best)
      : effort_(effort),
        graph_(graph),
        cluster_(cluster),
        options_(options),
        model_(graph, cluster, options.costs),
        bounds_(model_, options_),
        candidates_(model_, options_, effort),
        orders_(topological_orders(graph)),
        ranks_(options.straight && options.stages > 0 ? options.stages : cluster.num_ranks()) {}

  Result<PlannerAnswer> run() {
    make_seeds();
    make_layouts();
    make_chunked_layouts();
    if (layouts_.empty() && chunked_.empty()) return no_layout();
    make_spaces();
    if (effort_ == Effort::AnyPlan && candidates_.has_limits()) {
      look_for_room(MemoryGoal::AnyThatFits);
    } else {
      search();
    }
    try_spread_tables();
    if (candidates_.best().stages.empty() && !candidates_.has_limits() && model_.graph().sync_batch_norm)
      return Problem{"--sync-batch-norm",
                     "in no plan can the replicas wait for each other at every microbatch",
                     "give a number of microbatches that the replicas divide, or --schedule gpipe"};
    nothing_fitted_ = candidates_.best().stages.empty();
    if (nothing_fitted_) return Problem{"--memory", "no plan fits", ""};
    return answer();
  }
  /// Returns whether run() failed for want of memory.
  bool nothing_fitted() const { return nothing_fitted_; }
  /// Returns the least memory that a plan needs, after run() failed for want of memory.
  std::optional<LeastNeed> least_need() {
    const Bytes limit = memory_limit(options_, cluster_, RankId(0));
    bool same_limits = true;
    for (int r = 1; r < cluster_.num_ranks(); ++r)
      same_limits = same_limits && memory_limit(options_, cluster_, RankId(r)) == limit;
    // If all limits are equal, the plan with the least share is also the one with the least bytes.
    if (!room_ || !same_limits)
      room_ = least_memory(model_, options_, spaces_, layouts_, chunked_, Fullness::Bytes);
    if (room_->plan.stages.empty()) return std::nullopt;
    const auto peaks = model_.peaks(room_->plan.kind, room_->plan.microbatches, room_->plan.stages);
    if (!peaks) return std::nullopt;
    return LeastNeed{std::ranges::max(*peaks), room_->proved};
  }

 private:
  void search() {
    try_single_stages();
    for (const std::vector<CutStage>& seed : seeds_) consider_everywhere(seed);
    if (small_enough()) {
      search_all();
    } else {
      search_some();
    }
    if (!fits_at_all_) return;
    if (!every_cut_) {
      candidates_.reserve(work(kGroupActions));
      candidates_.allow(work(kGroupActions));
      move_layers(candidates_, model_);
    }
    search_chunks();
    order_by_costs();
    if (candidates_.best().stages.empty()) look_for_room();
  }

  /// The parts of the search, with the percentage at which each begins in a long search.
  enum Part : int { kTables = 0, kLikely = 40, kGroups = 50, kClimb = 75, kChunks = 85, kEnd = 100 };
  void report(Part part, Part next, std::size_t done, std::size_t of) const {
    if (!options_.progress) return;
    const double share = static_cast<double>(done) / static_cast<double>(std::max<std::size_t>(1, of));
    options_.progress(
        "plan", (static_cast<int>(part) + share * static_cast<int>(next - part)) / static_cast<int>(kEnd));
  }

  long work(double count) const { return static_cast<long>(std::min(1e15, count * options_.effort)); }

  /// Looks for the plan that leaves the most room. Returns false if it is proved not to fit: then no
  /// candidate fits.
  bool look_for_room(MemoryGoal wanted = MemoryGoal::Least) {
    room_ = least_memory(model_, options_, spaces_, layouts_, chunked_, Fullness::OfLimits, wanted);
    if (room_->worst <= 1) candidates_.consider_always(room_->plan);
    return room_->worst <= 1 || !room_->proved;
  }

  // ---- spaces and layouts
  // ------------------------------------------------------------------------------

  void make_seeds() {
    chain_ = has_one_order(graph_);
    if (!chain_) complete_ = CutSpace::complete(model_, orders_.front(), options_.most_states);
    if (!chain_ && !complete_) return;
    seeds_ = pipedream_seeds(graph_, cluster_,
                             chain_ ? static_cast<int>(graph_.nodes.size()) : complete_->states());
  }

  /// Makes the complete space if tables over it can be afforded, else the prefixes of some orders.
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
  /// Returns the schedules to try with one stage per rank. On a single stage all flushing schedules are
  /// equal.
  std::vector<ScheduleKind> kinds(std::size_t stages = 2) const {
    if (options_.chunks > 1) return {};
    if (chooses_schedule() && stages == 1) return {ScheduleKind::OneFOneB};
    if (chooses_schedule()) {
      std::vector<ScheduleKind> kinds = schedule_kinds([](const ScheduleTraits& row) {
        return row.order == OrderSource::Rule && !is_asynchronous(row.kind) && !needs_chunks(row.kind);
      });
      std::stable_partition(kinds.begin(), kinds.end(),
                            [](ScheduleKind kind) { return kind == ScheduleKind::OneFOneB; });
      return kinds;
    }
    const ScheduleKind kind = *options_.schedule;
    if (needs_chunks(kind)) return {};
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
      // Round robin would leave a replica without work.
      if (!is_asynchronous(kind) && r > microbatches) return std::nullopt;
      auto& stage = ranks.emplace_back();
      for (int i = 0; i < r; ++i) stage.push_back(devices[next++]);
    }
    Result<Layout> layout =
        make_layout(model_, options_, kind, microbatches, std::move(ranks), all_compute_s_, chain_);
    if (!layout) return std::nullopt;
    return std::move(*layout);
  }

  /// Returns whether tables over all layouts and spaces can be afforded. Then every cut is a candidate.
  bool small_enough() {
    std::int64_t work = 0;
    bool tables = true;
    for (const Layout& layout : layouts_) {
      for (const CutSpace& space : spaces_) {
        // With memory limits a table may look at many ends of a stage.
        const std::int64_t n = space.states();
        const std::int64_t tried = candidates_.has_limits() ? n * n / 8 : 0;
        work += layout.stages() * std::max(space.pairs(), tried);
        tables = tables && static_cast<std::int64_t>(layout.stages()) * space.states() <= kMostTable;
      }
    }
    return tables && work <= kMostTableWork * std::min(1.0, options_.effort);
  }

  // ---- every cut of every layout: tables, then branch and bound
  // -----------------------------------------------------------

  /// Looks at data parallelism in spite of the work limits, which a step of many microbatches may exceed.
  void try_single_stages() {
    if (spaces_.empty()) return;
    for (const Layout& layout : layouts_) {
      if (layout.stages() != 1) continue;
      Found found{.kind = layout.kind, .microbatches = layout.microbatches, .stages = {}};
      CutStage& stage = found.stages.emplace_back();
      stage.nodes = spaces_.front().layers(0, spaces_.front().last());
      model_.sort_by_execution(stage.nodes);
      stage.ranks = layout.ranks[0];
      stage.recompute = options_.recompute == Recompute::Always;
      candidates_.consider_always(std::move(found));
    }
  }

  /// Looks at the model's tables spread over all ranks, beside replicas of all else: no cut is such a plan.
  void try_spread_tables() {
    if (options_.schedule || options_.stages > 0 || options_.chunks > 0 || options_.straight ||
        options_.costs.arrays > 1 || !graph_.turns.empty() || graph_.jobs > 1)
      return;
    for (const int m : microbatch_counts()) {
      const Result<Plan> plan = spread_tables_plan(graph_, ranks_, m);
      if (!plan || m < ranks_) continue;
      Found found{.kind = plan->schedule, .microbatches = m, .stages = model_.stages_of(*plan)};
      for (CutStage& stage : found.stages) stage.recompute = options_.recompute == Recompute::Always;
      candidates_.consider_always(std::move(found));
    }
  }

  static std::vector<Group> grouped(std::vector<Open> open) {
    std::map<std::pair<ScheduleKind, int>, Group> by_key;
    for (Open& one : open) {
      Group& group = by_key[{one.layout->kind, one.layout->stages()}];
      group.open.push_back(std::move(one));
    }
    std::vector<Group> groups;
    for (auto& [key, group] : by_key) {
      std::stable_sort(group.open.begin(), group.open.end(), [](const Open& a, const Open& b) {
        return a.bound / a.layout->microbatches < b.bound / b.layout->microbatches;
      });
      groups.push_back(std::move(group));
    }
    std::stable_sort(groups.begin(), groups.end(),
                     [](const Group& a, const Group& b) { return a.bound() < b.bound(); });
    return groups;
  }

  void search_all() {
    std::vector<Open> open;
    std::size_t tables = 0;
    for (const CutSpace& space : spaces_) {
      for (const Layout& layout : layouts_) {
        report(kTables, kLikely, tables++, spaces_.size() * layouts_.size());
        fill_bottlenecks(table_, bounds_, model_, space, layout);
        const double bound = std::max(table_.least(), layout.floor_s);
        if (bound == kInfinite) continue;
        open.push_back({&layout, &space, bound, balanced_cuts(space, layout)});
      }
    }
    std::vector<Group> groups = grouped(std::move(open));
    std::map<const Group*, Open> likeliest;
    for (Group& group : groups) {
      report(kLikely, kGroups, likeliest.size(), groups.size());
      likeliest[&group] = look_at_likely_cuts(group);
    }
    if (candidates_.best().stages.empty() && !look_for_room()) {
      fits_at_all_ = false;
      return;
    }
    every_layout_ = true;
    std::size_t searched = 0;
    for (Group& group : groups) {
      report(kGroups, kClimb, searched++, groups.size());
      if (const Open& likely = likeliest[&group]; likely.layout != nullptr) {
        candidates_.allow(work(kGroupActions));
        if (candidates_.worth(*likely.layout, likely.layout->floor_s))
          move_cuts(candidates_, *likely.space, *likely.layout, likely.cuts, kInfinite);
      }
      every_layout_ = search_group(group) && every_layout_;
    }
    climb_replications();
  }

  std::vector<int> balanced_cuts(const CutSpace& space, const Layout& layout) {
    return table_.cuts(space, layout.stages(),
                       [&](int s, int a, int b) { return bounds_.busy_if_it_fits(space, layout, s, a, b); });
  }

  /// Looks at the cut of each layout that is the most balanced, with and without messages. Returns the best
  /// of these. A good plan at the beginning lets the bounds exclude more cuts.
  Open look_at_likely_cuts(const Group& group) {
    candidates_.allow(work(kGroupActions));
    Open best;
    double least = kInfinite;
    std::size_t looked = 0;
    for (const Open& o : group.open) {
      if (!candidates_.worth(*o.layout, o.bound) && looked >= kOthers) continue;
      ++looked;
      Open tried = o;
      const double found = look_at(tried);
      if (found >= least) continue;
      least = found;
      best = std::move(tried);
    }
    return best;
  }

  /// Looks at likely cuts of the layout and stores the best in `open`. Returns its seconds for a microbatch.
  double look_at(Open& open) {
    std::vector<std::vector<int>> likely;
    if (!open.cuts.empty() || open.layout->stages() == 1) likely.push_back(open.cuts);
    likely.push_back(open.space->is_linear() ? greedy_cuts(model_, bounds_, *open.space, *open.layout).cuts
                                             : cuts_with_messages(*open.space, *open.layout));
    double least = kInfinite;
    for (std::vector<int>& cuts : likely) {
      const double found = candidates_.consider(*open.space, *open.layout, cuts);
      if (found >= least) continue;
      least = found;
      open.cuts = std::move(cuts);
    }
    return least;
  }

  /// Returns cuts that are balanced with the reduce and update after the last backward, and with the wires.
  std::vector<int> cuts_with_messages(const CutSpace& space, const Layout& layout) {
    const auto wire = [&](int s, int b) {
      return std::min(layout.rounds[s], layout.rounds[s + 1]) *
             transfer_seconds(cluster_, layout.ranks[s].back(), layout.ranks[s + 1].front(),
                              space.live_bytes(b));
    };
    const auto seconds = [&](int s, int a, int b) {
      const double own =
          bounds_.busy_if_it_fits(space, layout, s, a, b) + bounds_.reduce_and_update(space, layout, s, a, b);
      return s + 1 < layout.stages() ? std::max(own, wire(s, b)) : own;
    };
    table_.fill(space, layout.stages(), model_.num_sheets() == 1, seconds, [&](int s, int a, int b) {
      return least_busy_if_it_may_fit(bounds_, space, layout, s, a, b);
    });
    return table_.cuts(space, layout.stages(), seconds);
  }

  /// Searches every cut of the group's layouts. Each layout first gets a share of the group's work, then the
  /// layouts that need more get the rest. Returns whether all layouts were searched to the end.
  bool search_group(Group& group) {
    EveryCutSearch search(candidates_, bounds_, model_);
    long places = work(kGroupPlaces);
    const long end = model_.simulated_actions() + work(kGroupActions);
    // A single layout gets all work at once, since a search that was cut short would begin anew.
    const auto layouts = static_cast<long>(group.open.size());
    const long shares = layouts == 1 ? 1 : 2 * layouts;
    bool all = true;
    for (bool first : {true, false}) {
      all = true;
      for (Open& o : group.open) {
        if (o.searched || !candidates_.worth(*o.layout, o.bound)) continue;
        const long left = end - model_.simulated_actions();
        candidates_.allow(first ? work(kGroupActions) / shares : left);
        long share = first ? work(kGroupPlaces) / shares : places;
        const long given = share;
        o.searched = search.run(*o.space, *o.layout, share);
        places -= given - share;
        all = all && o.searched;
      }
    }
    return all;
  }

  /// Goes from the best replication to its neighbours while that helps, if not every replication was a
  /// candidate. Likely cuts of all neighbours are looked at first. Then all cuts are searched, the likeliest
  /// neighbour first, as far as the allowed work goes.
  void climb_replications() {
    if (ranks_ <= kRanksForEveryReplication || options_.straight || candidates_.best().stages.empty()) return;
    EveryCutSearch search(candidates_, bounds_, model_);
    candidates_.reserve(work(kClimbActions));
    candidates_.allow(work(kClimbActions));
    long places = work(kGroupPlaces);
    for (int round = 0; round < kMostClimbs; ++round) {
      report(kClimb, kChunks, static_cast<std::size_t>(round), kMostClimbs);
      const Found start = candidates_.best();
      std::vector<RankId> devices;
      for (const CutStage& stage : start.stages)
        devices.insert(devices.end(), stage.ranks.begin(), stage.ranks.end());
      std::deque<Layout> layouts;
      std::vector<std::pair<double, Open>> likely;
      for (const std::vector<int>& replicas : neighbours_of(replicas_of(start.stages))) {
        if (!allowed(replicas)) continue;
        std::optional<Layout> layout = layout_of(start.kind, start.microbatches, replicas, devices);
        if (!layout || !candidates_.worth(*layout, layout->floor_s)) continue;
        layouts.push_back(std::move(*layout));
        for (const CutSpace& space : spaces_) {
          Open tried{&layouts.back(), &space, layouts.back().floor_s, {}};
          const double found = look_at(tried);
          likely.push_back({found, std::move(tried)});
        }
      }
      std::ranges::stable_sort(likely, {}, [](const auto& one) { return one.first; });
      for (const auto& [found, open] : likely) search.run(*open.space, *open.layout, places);
      if (candidates_.best().per_microbatch >= start.per_microbatch) break;
    }
  }

  // ---- some cuts of the likely layouts
  // ---------------------------------------------------------------------

  void search_some() {
    add_free_replications();
    std::map<std::pair<ScheduleKind, int>, std::size_t> looked_at;
    std::vector<Open> open;
    std::size_t tables = 0;
    for (const Layout& layout : layouts_) {
      report(kTables, kLikely, tables++, layouts_.size());
      if (looked_at[{layout.kind, layout.stages()}]++ >= kFirstLayouts) continue;
      for (const CutSpace& space : spaces_) {
        if (!space.is_linear()) continue;
        GreedyCuts greedy = greedy_cuts(model_, bounds_, space, layout);
        if (greedy.reached_s < kInfinite)
          open.push_back({&layout, &space, greedy.reached_s, std::move(greedy.cuts)});
      }
    }
    std::vector<Group> groups = grouped(std::move(open));
    std::size_t searched = 0;
    for (const Group& group : groups) {
      report(kLikely, kChunks, searched++, groups.size());
      candidates_.allow(work(kGroupActions));
      const Open* best = nullptr;
      double least = kInfinite;
      for (const Open& o : group.open) {
        if (!candidates_.worth(*o.layout, o.layout->floor_s)) continue;
        const double found = candidates_.consider(*o.space, *o.layout, o.cuts);
        if (found >= least) continue;
        least = found;
        best = &o;
      }
      if (best == nullptr) continue;
      candidates_.allow(work(kGroupActions));
      move_cuts(candidates_, *best->space, *best->layout, best->cuts, least);
    }
    if (candidates_.best().stages.empty()) fits_at_all_ = look_for_room();
  }

  /// Puts replications that replications() does not return in front of the other layouts.
  void add_free_replications() {
    if (options_.straight || options_.stages > 0 || ranks_ <= kRanksForEveryReplication) return;
    const auto space = std::ranges::find_if(spaces_, &CutSpace::is_linear);
    if (space == spaces_.end()) return;
    for (ScheduleKind kind : kinds()) {
      for (int microbatches : microbatch_counts()) {
        std::vector<int> replicas = free_replication(model_, *space, kind, microbatches, ranks_);
        if (replicas.empty()) continue;
        const std::size_t before = layouts_.size();
        for (const std::vector<RankId>& devices : device_orders(cluster_)) {
          add_layout(kind, microbatches, replicas, devices);
        }
        std::rotate(layouts_.begin(), layouts_.begin() + static_cast<std::ptrdiff_t>(before), layouts_.end());
      }
    }
  }

  // ---- several stages per rank, and orders by cost
  // -----------------------------------------------------------------------------------------------------

  /// Looks at balanced cuts of the likeliest layouts of each group, and improves the best step by step.
  void search_chunks() {
    finished_ = every_layout_;
    // Balanced cuts of a complete space may send many tensors. Prefixes of orders send fewer, so they are
    // tried too.
    std::vector<CutSpace> orders;
    for (const std::vector<int>& order : orders_) {
      if (!spaces_.front().is_linear()) orders.push_back(CutSpace::linear(model_, order));
    }
    std::vector<const CutSpace*> spaces;
    for (const std::vector<CutSpace>* some : {&orders, &spaces_}) {
      for (const CutSpace& space : *some) spaces.push_back(&space);
    }
    candidates_.reserve(work(kChunkedActions));
    std::vector<Open> open;
    for (const Layout& layout : chunked_) open.push_back({&layout, nullptr, layout.floor_s, {}});
    const std::vector<Group> groups = grouped(std::move(open));
    std::size_t searched = 0;
    for (const Group& group : groups) {
      report(kChunks, kEnd, searched++, groups.size());
      candidates_.allow(work(kChunkActions));
      std::vector<std::pair<double, Open>> tried;
      std::size_t looked = 0;
      for (const Open& o : group.open) {
        if (!candidates_.worth(*o.layout, o.bound)) continue;
        if (looked++ == kChunkLayouts) break;
        for (const CutSpace* space : spaces) {
          for (std::vector<int>& cuts : chunk_cuts(*space, *o.layout)) {
            const double found = candidates_.consider(*space, *o.layout, cuts);
            if (found < kInfinite) tried.push_back({found, {o.layout, space, o.bound, std::move(cuts)}});
          }
        }
      }
      std::ranges::stable_sort(tried, {}, [](const auto& one) { return one.first; });
      for (std::size_t i = 0; i < tried.size() && i < kImprovedChunkCuts; ++i) {
        candidates_.allow(work(kChunkActions));
        const Open& from = tried[i].second;
        move_cuts(candidates_, *from.space, *from.layout, from.cuts, tried[i].first);
      }
    }
  }

  std::vector<std::vector<int>> chunk_cuts(const CutSpace& space, const Layout& layout) {
    if (space.is_linear()) {
      return likely_chunk_cuts(model_, space, layout, greedy_cuts(model_, bounds_, space, layout).cuts,
                               kLikelyChunkCuts);
    }
    fill_bottlenecks(table_, bounds_, model_, space, layout);
    if (table_.least() == kInfinite) return {};
    return {balanced_cuts(space, layout)};
  }

  /// Looks at the best plans of each number of stages again, in the order that list_schedule makes of their
  /// costs.
  void order_by_costs() {
    if (!chooses_schedule()) return;
    std::vector<Found> found;
    for (const auto& [way, plan] : candidates_.by_way()) {
      if (!plan.stages.empty()) found.push_back(plan);
    }
    std::stable_sort(found.begin(), found.end(), better);
    const bool asked = options_.schedule.has_value();
    if (asked) candidates_.forget_best();
    candidates_.reserve(work(kGroupActions));
    candidates_.allow(work(kGroupActions));
    std::map<std::size_t, std::size_t> ordered;  // key: number of stages
    for (Found& plan : found) {
      const auto places = static_cast<long>(plan.stages.size()) * plan.microbatches;
      if (!asked && (plan.stages.size() < 2 || places > kMostOrderedPlaces)) continue;
      if (ordered[plan.stages.size()] == kOrderedPlans) continue;
      const double least = model_.busiest_rank_s(plan.kind, plan.microbatches, plan.stages);
      if (least / plan.microbatches >= candidates_.best().per_microbatch) continue;
      ++ordered[plan.stages.size()];
      plan.kind = ScheduleKind::AutoOrder;
      const double fixed = plan.per_microbatch;
      const Way way = way_of(plan);
      if (candidates_.consider(std::move(plan)) > fixed * (1 - kEqualTimes) && !asked)
        candidates_.forget_way(way);
    }
  }

  /// Looks at a seed under every schedule and every number of microbatches.
  void consider_everywhere(const std::vector<CutStage>& stages) {
    const std::vector<int> replicas = replicas_of(stages);
    if (!allowed(replicas) || std::accumulate(replicas.begin(), replicas.end(), 0) != ranks_) return;
    for (ScheduleKind kind : kinds(replicas.size())) {
      for (int m : microbatch_counts()) {
        if (!is_asynchronous(kind) && *std::max_element(replicas.begin(), replicas.end()) > m) continue;
        Found found{.kind = kind, .microbatches = m, .stages = stages};
        for (CutStage& stage : found.stages) stage.recompute = options_.recompute == Recompute::Always;
        candidates_.allow(work(kGroupActions));
        candidates_.consider(std::move(found));
      }
    }
  }

  // ---- answers
  // -----------------------------------------------------------------------------------------

  Plan plan_of(const Found& found) {
    Plan plan;
    plan.model = graph_.model;
    plan.schedule = found.kind;
    plan.arrays = options_.costs.arrays;
    plan.microbatches = found.microbatches / plan.arrays;
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
    answer.plan = plan_of(candidates_.best());
    if (Problems problems = validate(answer.plan, graph_); !problems.empty()) return problems;
    std::vector<const Found*> others;
    for (const auto& [way, found] : candidates_.by_way()) {
      if (!found.stages.empty() && way != way_of(candidates_.best())) others.push_back(&found);
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
                     .simulated = candidates_.simulated(),
                     .floor_s = floor()};
    return answer;
  }

 public:
  /// Adds the parts of a step's seconds to the answer and the others. run() must have succeeded.
  void explain(PlannerAnswer& answer, Reasons reasons) {
    const auto parts = [&](const Found& found) {
      const Result<StepBreakdown> made = model_.breakdown(found.kind, found.microbatches, found.stages);
      return made ? *made : StepBreakdown{};
    };
    answer.parts = parts(candidates_.best());
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
    if (candidates_.best().kind == ScheduleKind::SpreadTables) return 0;  // of cuts alone
    double least = kInfinite;
    for (const std::vector<Layout>* layouts : {&layouts_, &chunked_}) {
      for (const Layout& layout : *layouts) least = std::min(least, layout.floor_s / layout.microbatches);
    }
    return least < kInfinite ? least * candidates_.best().microbatches : 0;
  }

  Result<PlannerAnswer> no_layout() const {
    return Problem{"--microbatches",
                   "no way to spread " + std::to_string(ranks_) + " ranks over " +
                       (options_.stages > 0 ? std::to_string(options_.stages) + " stages" : "the stages") +
                       " gives every replica a microbatch",
                   "give at least as many microbatches as the widest stage has replicas, or more stages"};
  }

  const Effort effort_;
  const LayerGraph& graph_;
  const ClusterSpec& cluster_;
  const PlannerOptions& options_;
  CostModel model_;
  const StageBounds bounds_;
  Candidates candidates_;
  const double all_compute_s_ = all_compute();  ///< seconds of one microbatch through all layers
  std::vector<std::vector<int>> orders_;
  const int ranks_;  // all ranks of the cluster; with --straight and --stages only one for each stage
  bool chain_ = false;
  bool every_cut_ = false;
  bool every_layout_ = false;
  bool fits_at_all_ = true;
  bool finished_ = false;
  bool nothing_fitted_ = false;
  std::optional<CutSpace> complete_;
  std::vector<CutSpace> spaces_;
  std::vector<std::vector<CutStage>> seeds_;
  std::vector<Layout> layouts_;
  std::vector<Layout> chunked_;
  MinimaxTable table_;
  std::vector<Found> other_;
  std::optional<LeastMemory> room_;  ///< the result of look_for_room()
};

Problems check_options(const LayerGraph& graph, const ClusterSpec& cluster, const PlannerOptions& options) {
  Problems problems = check_kind_profiles(graph, cluster, options.costs.profiles);
  const int layers = static_cast<int>(graph.nodes.size());
  const int ranks = cluster.num_ranks();
  if (layers == 0) problems.push_back({"profile", "has no layers", "profile a model with layers"});
  if (ranks < 1) problems.push_back({"cluster", "has no ranks", "give --ranks N"});
  if (options.microbatches < 0) problems.push_back({"--microbatches", "is below 0", "0 chooses"});
  if (!graph.turns.empty() && options.schedule && is_asynchronous(*options.schedule)) {
    problems.push_back({"--schedule",
                        to_string(*options.schedule) + " never flushes, and " + graph.model +
                            " is trained in turns, each of which needs the weights of the one before",
                        "a schedule that flushes"});
  }
  if (graph.sync_batch_norm && options.schedule && is_asynchronous(*options.schedule)) {
    problems.push_back({"--schedule",
                        "the replicas of " + to_string(*options.schedule) +
                            " take turns, and the profile is of train --sync-batch-norm, where they meet",
                        "a schedule that flushes, or a profile without --sync-batch-norm"});
  }
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

/// Whether a refusal says which changes would make a plan fit the memory.
enum class Refusal { Brief, WithHints };

Result<PlannerAnswer> answer_of(const LayerGraph& graph, const ClusterSpec& cluster,
                                const PlannerOptions& options, std::optional<Reasons> reasons,
                                Refusal refusal = Refusal::WithHints) {
  if (Problems problems = check_options(graph, cluster, options); !problems.empty()) return problems;
  if (Result<std::vector<int>> order = graph.topological_order(); !order) return order.problems();
  Search search(graph, cluster, options);
  Result<PlannerAnswer> answer = search.run();
  if (answer && reasons) search.explain(*answer, *reasons);
  if (answer || !search.nothing_fitted() || refusal == Refusal::Brief) return answer;
  return nothing_fits(graph, cluster, options, search.least_need(),
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

Result<PlannerAnswer> plan_that_fits(const LayerGraph& graph, const ClusterSpec& cluster,
                                     const PlannerOptions& options) {
  return answer_of(graph, cluster, options, Reasons::All, Refusal::Brief);
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
