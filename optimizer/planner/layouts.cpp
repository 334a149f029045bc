#include "optimizer/planner/layouts.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace millrace {
namespace {

constexpr int kMostStageCounts = 24;
constexpr int kEveryStageCount = 8;  // no number of stages up to this one is left out
constexpr std::size_t kMostHostOrders = 24;

void compose(int ranks, int stages, std::vector<int>& replicas, std::vector<std::vector<int>>& result) {
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

void choose(int ranks, int stages, std::vector<std::vector<int>>& result) {
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

/// Returns all numbers of stages up to `most` if `most` is at most 24. Else it returns those up to 8, further
/// ones in growing steps, and `most`.
std::vector<int> stage_counts(int most) {
  std::vector<int> counts;
  for (int stages = 1; stages < most;) {
    counts.push_back(stages);
    const bool next = most <= kMostStageCounts || stages < kEveryStageCount;
    stages = next ? stages + 1 : std::max(stages + 1, stages * 3 / 2 / 2 * 2);
  }
  counts.push_back(most);
  return counts;
}

struct HostClass {
  std::string kind;
  int devices = 0;
  ClusterLink link;
  bool operator==(const HostClass&) const = default;
};

std::vector<std::vector<int>> heuristic_orders(const ClusterSpec& cluster,
                                               const std::vector<std::vector<RankId>>& blocks) {
  std::vector<int> own(blocks.size());
  std::iota(own.begin(), own.end(), 0);
  std::vector<std::vector<int>> orders{own};
  const auto add_sorted = [&](auto&& key) {
    std::vector<int> order = own;
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return key(a) < key(b); });
    orders.push_back(order);
    orders.emplace_back(order.rbegin(), order.rend());
  };
  add_sorted([](int h) { return h; });
  add_sorted([&](int h) { return cluster.speed_of(blocks[h].front()); });
  add_sorted([&](int h) { return cluster.memory_of(blocks[h].front()); });
  // An order begins at each of the first four hosts and always goes on to the host with the quickest link.
  for (int start = 0; start < std::min<int>(4, static_cast<int>(blocks.size())); ++start) {
    std::vector<int> order{start};
    while (order.size() < blocks.size()) {
      int best = -1;
      for (int h : own) {
        if (std::find(order.begin(), order.end(), h) != order.end()) continue;
        const auto speed = [&](int x) {
          return cluster.link(blocks[order.back()].front(), blocks[x].front()).bandwidth;
        };
        if (best < 0 || speed(h) > speed(best)) best = h;
      }
      order.push_back(best);
    }
    orders.push_back(std::move(order));
  }
  return orders;
}

/// Returns orders of the hosts. Two orders that differ only by an exchange of equal hosts count as one.
std::vector<std::vector<int>> host_orders(const ClusterSpec& cluster,
                                          const std::vector<std::vector<RankId>>& blocks) {
  std::vector<HostClass> classes;
  std::vector<int> class_of;
  for (const std::vector<RankId>& block : blocks) {
    const ClusterHost& host = cluster.hosts[cluster.host_of(block.front())];
    const HostClass made{host.kind, static_cast<int>(block.size()), host.link};
    auto found = std::find(classes.begin(), classes.end(), made);
    if (!cluster.links.empty() || found == classes.end()) found = classes.insert(classes.end(), made);
    class_of.push_back(static_cast<int>(found - classes.begin()));
  }
  std::vector<int> own = class_of;
  std::sort(class_of.begin(), class_of.end());
  std::vector<std::vector<int>> orders;
  do {
    std::vector<int> order;
    for (int wanted : class_of) {
      for (int h = 0; h < static_cast<int>(own.size()); ++h) {
        if (own[h] != wanted || std::find(order.begin(), order.end(), h) != order.end()) continue;
        order.push_back(h);
        break;
      }
    }
    orders.push_back(std::move(order));
    if (orders.size() > kMostHostOrders) return heuristic_orders(cluster, blocks);
  } while (std::next_permutation(class_of.begin(), class_of.end()));
  return orders;
}

/// Returns orders for links measured pair by pair. Up to four ranks these are all orders. Else one begins at
/// each of the first four ranks and always goes on to the nearest rank that is left.
std::vector<std::vector<RankId>> orders_by_links(const ClusterSpec& cluster) {
  std::vector<RankId> own;
  for (int r = 0; r < cluster.num_ranks(); ++r) own.emplace_back(r);
  std::vector<std::vector<RankId>> orders;
  if (own.size() <= 4) {
    do orders.push_back(own);
    while (std::next_permutation(own.begin(), own.end()));
    return orders;
  }
  constexpr Bytes kMessage = kMiB;  // transfers of this size are compared
  for (int start = 0; start < 4; ++start) {
    std::vector<RankId>& order = orders.emplace_back(1, RankId(start));
    while (order.size() < own.size()) {
      const RankId* nearest = nullptr;
      for (const RankId& rank : own) {
        if (std::find(order.begin(), order.end(), rank) != order.end()) continue;
        if (nearest == nullptr || transfer_seconds(cluster, order.back(), rank, kMessage) <
                                      transfer_seconds(cluster, order.back(), *nearest, kMessage))
          nearest = &rank;
      }
      order.push_back(*nearest);
    }
  }
  return orders;
}

/// Returns the groups of devices with the closest links: the innermost level's components, or the hosts.
std::vector<std::vector<RankId>> blocks_of(const ClusterSpec& cluster) {
  std::vector<std::vector<RankId>> blocks;
  const int ranks = cluster.num_ranks();
  for (int r = 0; r < ranks; ++r) {
    const int block = cluster.levels.size() > 1                           ? r / cluster.levels.front().count
                      : cluster.levels.empty() || !cluster.same_devices() ? cluster.host_of(RankId(r))
                                                                          : 0;
    if (static_cast<std::size_t>(block) >= blocks.size()) blocks.emplace_back();
    blocks.back().push_back(RankId(r));
  }
  return blocks;
}

}  // namespace

Bytes memory_limit(const PlannerOptions& options, const ClusterSpec& cluster, RankId rank) {
  const Bytes limit = options.memory_per_rank > 0 ? options.memory_per_rank : cluster.memory_of(rank);
  return limit > 0 ? std::max<Bytes>(1, limit - options.kept_free) : 0;
}

Bytes bytes_kept_free(const LayerGraph& graph) {
  constexpr Bytes kPieces = (20 + 2) << 20;
  return graph.device.starts_with("cuda") ? kPieces : 0;
}

std::vector<std::vector<RankId>> device_orders(const ClusterSpec& cluster) {
  const std::vector<std::vector<RankId>> blocks = blocks_of(cluster);
  std::vector<std::vector<RankId>> orders(1);
  for (int r = 0; r < cluster.num_ranks(); ++r) orders.front().push_back(RankId(r));
  if (!cluster.rank_links.empty()) {
    for (std::vector<RankId>& order : orders_by_links(cluster)) {
      if (order != orders.front()) orders.push_back(std::move(order));
    }
  }
  if (blocks.size() < 2) return orders;
  const bool differ = cluster.levels.empty() || !cluster.same_devices();
  for (const std::vector<int>& hosts :
       differ ? host_orders(cluster, blocks) : std::vector<std::vector<int>>{}) {
    std::vector<RankId> order;
    for (int h : hosts) order.insert(order.end(), blocks[h].begin(), blocks[h].end());
    orders.push_back(std::move(order));
  }
  const bool equal = std::all_of(blocks.begin(), blocks.end(),
                                 [&](const auto& b) { return b.size() == blocks.front().size(); });
  if (equal && blocks.front().size() > 1) {
    std::vector<RankId> striped;
    for (std::size_t i = 0; i < blocks.front().size(); ++i) {
      for (const std::vector<RankId>& block : blocks) striped.push_back(block[i]);
    }
    orders.push_back(std::move(striped));
  }
  std::vector<std::vector<RankId>> distinct;
  for (auto& order : orders) {
    if (std::find(distinct.begin(), distinct.end(), order) == distinct.end())
      distinct.push_back(std::move(order));
  }
  return distinct;
}

std::vector<std::vector<int>> replications(int ranks, int most_stages, const PlannerOptions& options) {
  std::vector<std::vector<int>> result;
  std::vector<int> counts = stage_counts(std::min(ranks, most_stages));
  if (options.straight) counts = {ranks};
  if (options.stages > 0) counts = {options.stages};
  for (int stages : counts) {
    if (stages > std::min(ranks, most_stages)) continue;
    if (options.straight && stages != ranks) continue;
    std::vector<int> replicas;
    if (ranks <= kRanksForEveryReplication) {
      compose(ranks, stages, replicas, result);
    } else {
      choose(ranks, stages, result);
    }
  }
  return result;
}

namespace {

constexpr int kStagesForEveryLimit = 128;  // a limit takes time linear in the stages

/// Divides a rank's limit on stashed microbatches equally among its chunks. In long pipelines the limit of
/// the first rank, which holds most, is taken for all.
void share_stash(ScheduleKind kind, const PipelineShape& shape, Layout& layout) {
  int limit = 0;
  for (std::size_t s = 0; s < layout.ranks.size(); ++s) {
    if (s == 0 || layout.stages() <= kStagesForEveryLimit)
      limit = stash_limit(kind, shape, layout.ranks[s].front());
    layout.stash.moments[s] = {StageMoment{.stashed = std::max(1, limit / layout.chunks)}};
  }
}

}  // namespace

namespace {

constexpr std::size_t kMostPairs = 64;

/// Returns the distinct links between the ranks of two stages. Copies between device and host lower their
/// bandwidth.
std::vector<ClusterLink> links_between(const ClusterSpec& cluster, const std::vector<RankId>& from,
                                       const std::vector<RankId>& to) {
  std::vector<ClusterLink> links;
  if (from.size() * to.size() > kMostPairs) return links;
  for (RankId a : from) {
    for (RankId b : to) {
      ClusterLink link = cluster.link(a, b);
      if (const double copy = cluster.copy_seconds_per_byte(a, b); copy > 0)
        link.bandwidth = 1 / (1 / link.bandwidth + copy);
      if (std::find(links.begin(), links.end(), link) == links.end()) links.push_back(link);
    }
  }
  return links;
}

}  // namespace

Result<Layout> make_layout(CostModel& model, const PlannerOptions& options, ScheduleKind kind,
                           int microbatches, std::vector<std::vector<RankId>> ranks, double compute_s,
                           bool chain) {
  Layout layout{.kind = kind, .microbatches = microbatches, .ranks = std::move(ranks)};
  PipelineShape shape{.microbatches = microbatches, .arrays = model.options().arrays};
  shape.ranks_of_stage = layout.ranks;
  const ClusterSpec& cluster = model.cluster();
  const int ranks_in_all = shape.num_ranks();
  const auto places = std::accumulate(layout.ranks.begin(), layout.ranks.end(), std::size_t{0},
                                      [](std::size_t n, const auto& stage) { return n + stage.size(); });
  layout.chunks = static_cast<int>(places) / ranks_in_all;
  double left = 1;  // product of (1 - 1 / rounds) over all stages
  double rate = 0;  // sum of 1 / rounds over all stages
  for (const std::vector<RankId>& stage : layout.ranks) {
    const auto r = static_cast<int>(stage.size());
    layout.rounds.push_back(is_asynchronous(kind) ? static_cast<double>(microbatches) / r
                                                  : (microbatches + r - 1) / r);
    Bytes memory = 0;
    std::vector<int> sheets;
    for (RankId rank : stage) {
      const Bytes limit = memory_limit(options, cluster, rank);
      if (limit > 0) memory = memory == 0 ? limit : std::min(memory, limit);
      const int sheet = model.sheet_of(rank);
      if (std::find(sheets.begin(), sheets.end(), sheet) == sheets.end()) sheets.push_back(sheet);
    }
    layout.memory.push_back(memory / layout.chunks);
    layout.sheets.push_back(std::move(sheets));
    left *= 1 - 1 / layout.rounds.back();
    rate += 1 / layout.rounds.back();
  }
  // The search compares bytes with a limit only where there is one.
  const bool is_limited = std::ranges::any_of(layout.memory, [](Bytes limit) { return limit > 0; });
  Result<StashCounts> stash =
      model.stash(kind, shape, is_limited ? CostModel::Stash::Exact : CostModel::Stash::Bound);
  if (!stash) return stash.problems();
  layout.stash = std::move(*stash);
  layout.reduces = all_reduce_costs(cluster, model.conditions().host, layout.ranks);
  for (std::size_t s = 0; s + 1 < layout.ranks.size(); ++s)
    layout.hops.push_back(links_between(cluster, layout.ranks[s], layout.ranks[s + 1]));
  if (layout.chunks > 1) share_stash(kind, shape, layout);
  // Fill and drain take the whole time of the earlier stages only if a backward is one action.
  const bool fills = chain && model.graph().turns.empty() && layout.chunks == 1 && !is_asynchronous(kind) &&
                     !traits_of(kind).splits_backward;
  layout.floor_s = model.num_sheets() > 1 ? 0
                   : fills                ? compute_s / (1 - left)
                                          : compute_s / (rate / layout.chunks);
  return layout;
}

namespace {

constexpr int kMostChunks = 4;

std::vector<int> chunk_counts(ScheduleKind kind, const PlannerOptions& options) {
  std::vector<int> counts;
  for (int v = 2; v <= (is_v_shaped(kind) ? 2 : std::max(kMostChunks, options.chunks)); ++v) {
    if (options.chunks == 0 ? v <= kMostChunks : v == options.chunks) counts.push_back(v);
  }
  return counts;
}

/// Returns the ranks of each stage. With p places, stage s is at place s mod p; V-shaped schedules go up to
/// the last place and then back to the first.
std::vector<std::vector<RankId>> chunked_ranks(ScheduleKind kind, int places, int chunks,
                                               const std::vector<RankId>& devices, int replicas) {
  std::vector<std::vector<RankId>> ranks;
  for (int s = 0; s < places * chunks; ++s) {
    const int place = is_v_shaped(kind) ? std::min(s, 2 * places - 1 - s) : s % places;
    const auto first = devices.begin() + static_cast<std::ptrdiff_t>(place) * replicas;
    ranks.emplace_back(first, first + replicas);
  }
  return ranks;
}

}  // namespace

std::vector<Layout> chunked_layouts(CostModel& model, const PlannerOptions& options,
                                    const std::vector<int>& microbatches, int ranks, int layers,
                                    double compute_s) {
  std::vector<ScheduleKind> kinds = schedule_kinds([](const ScheduleTraits& row) {
    return row.order == OrderSource::Rule && allows_chunks(row.kind) && !is_asynchronous(row.kind);
  });
  if (options.schedule) std::erase_if(kinds, [&](ScheduleKind kind) { return kind != *options.schedule; });
  std::vector<Layout> layouts;
  const std::vector<std::vector<RankId>> orders = device_orders(model.cluster());
  for (int places = 2; places <= ranks; ++places) {
    const int replicas = ranks / places;
    if (ranks % places != 0 || (options.straight && replicas > 1)) continue;
    for (ScheduleKind kind : kinds) {
      for (int chunks : chunk_counts(kind, options)) {
        const int stages = places * chunks;
        if (stages > layers || (options.stages > 0 && stages != options.stages)) continue;
        for (int m : microbatches) {
          if (m < replicas) continue;
          for (const std::vector<RankId>& devices : orders) {
            Result<Layout> layout =
                make_layout(model, options, kind, m, chunked_ranks(kind, places, chunks, devices, replicas),
                            compute_s, false);
            if (layout) layouts.push_back(std::move(*layout));
          }
        }
      }
    }
  }
  std::stable_sort(layouts.begin(), layouts.end(), [](const Layout& a, const Layout& b) {
    return a.floor_s / a.microbatches < b.floor_s / b.microbatches;
  });
  return layouts;
}

}  // namespace millrace
