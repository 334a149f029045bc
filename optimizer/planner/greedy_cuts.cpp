#include "optimizer/planner/greedy_cuts.h"

#include <algorithm>
#include <numeric>

#include "optimizer/planner/found.h"

namespace millrace {
namespace {

constexpr int kBisections = 40;

bool take_greedily(const CostModel& model, const StageBounds& bounds, const CutSpace& space,
                   const Layout& layout, double limit, std::vector<int>& cuts) {
  const bool asynchronous = is_asynchronous(layout.kind);
  cuts.clear();
  int a = 0;
  double fill = 0;
  for (int s = 0; s < layout.stages(); ++s) {
    const int most = space.last() - (layout.stages() - s - 1);
    const auto in_time = [&](int b) {
      return fill + bounds.busy(space, layout, s, a, b) + bounds.reduce_and_update(space, layout, s, a, b) <=
             limit;
    };
    if (s + 1 == layout.stages())
      return bounds.fits(space, layout, s, a, space.last()) && in_time(space.last());
    int low = a;  // the last end that keeps the limits of time and memory, without messages
    for (int high = most; low < high;) {
      const int middle = low + (high - low + 1) / 2;
      const bool within =
          bounds.fits(space, layout, s, a, middle, StageBounds::Messages::None) && in_time(middle);
      within ? low = middle : high = middle - 1;
    }
    double hop = 0;
    for (; low > a; --low) {
      if (!bounds.fits(space, layout, s, a, low)) continue;
      hop = transfer_seconds(model.cluster(), layout.ranks[s].back(), layout.ranks[s + 1].front(),
                             space.live_bytes(low));
      if (fill + hop * std::min(layout.rounds[s], layout.rounds[s + 1]) <= limit) break;
    }
    if (low <= a) return false;
    if (!asynchronous && layout.chunks == 1) fill += bounds.compute(space, layout, s, a, low) + 2 * hop;
    cuts.push_back(low);
    a = low;
  }
  return false;
}

}  // namespace

GreedyCuts greedy_cuts(const CostModel& model, const StageBounds& bounds, const CutSpace& space,
                       const Layout& layout) {
  GreedyCuts found{.cuts = {}, .reached_s = kInfinite};
  double slowest = 0;
  for (int k = 0; k < model.num_sheets(); ++k)
    slowest = std::max(slowest, space.compute_s(k, 0, space.last()));
  double low = layout.floor_s;
  double high = 4 * slowest * layout.microbatches + 1;
  std::vector<int> cuts;
  if (!take_greedily(model, bounds, space, layout, high, cuts)) return found;
  found = {cuts, high};
  for (int i = 0; i < kBisections && high - low > 1e-7 * high; ++i) {
    const double middle = (low + high) / 2;
    if (take_greedily(model, bounds, space, layout, middle, cuts)) {
      found = {cuts, middle};
      high = middle;
    } else {
      low = middle;
    }
  }
  return found;
}

std::vector<int> free_replication(const CostModel& model, const CutSpace& space, ScheduleKind kind,
                                  int microbatches, int ranks_in_all) {
  const double all_compute = space.compute_s(0, 0, space.last());
  const int most = is_asynchronous(kind) ? ranks_in_all : std::min(ranks_in_all, microbatches);
  std::vector<int> sizes;
  for (int r = 1; r <= most; r = ranks_in_all <= 64 ? r + 1 : std::max(r + 1, r * 3 / 2 / 2 * 2))
    sizes.push_back(r);
  std::vector<AllReduceCost> reduces;
  for (int r : sizes) {
    std::vector<RankId> ranks;
    for (int i = 0; i < r; ++i) ranks.push_back(RankId(i));
    reduces.emplace_back(model.cluster(), model.conditions().host, ranks);
  }
  constexpr int kPlaces = 1000;
  const int stride = (space.last() + kPlaces - 1) / kPlaces;
  std::vector<int> places;
  for (int at = 0; at < space.last(); at += stride) places.push_back(at);
  places.push_back(space.last());
  const int n = static_cast<int>(places.size());
  const double rank_update = model.update_s_per_byte(0);
  std::vector<int> need(n), taken(n), size(n);
  const auto feasible = [&](double limit) {
    need[n - 1] = 0;
    for (int i = n - 2; i >= 0; --i) {
      need[i] = ranks_in_all + 1;
      const int a = places[i];
      const double fill = is_asynchronous(kind) ? 0 : space.compute_s(0, 0, a);
      for (std::size_t k = 0; k < sizes.size(); ++k) {
        const int r = sizes[k];
        const double rounds =
            is_asynchronous(kind) ? static_cast<double>(microbatches) / r : (microbatches + r - 1) / r;
        const auto within = [&](int j) {
          const int b = places[j];
          const Bytes bytes = space.parameters(a, b);
          double reduce = reduces[k].seconds(bytes);
          if (model.options().reduce == ReduceModel::Overlapped)
            reduce = std::max(0.0, reduce - space.backward_s(0, a, b));
          return fill + rounds * space.compute_s(0, a, b) + reduce +
                     rank_update * static_cast<double>(space.touched(a, b)) <=
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
    return need[0] <= ranks_in_all;
  };
  double low = all_compute * microbatches / ranks_in_all;
  double high = 2 * all_compute * microbatches + 1;
  if (!feasible(high)) return {};
  for (int i = 0; i < 20; ++i) {
    const double middle = (low + high) / 2;
    feasible(middle) ? high = middle : low = middle;
  }
  feasible(high);
  std::vector<int> replicas;
  for (int i = 0; i < n - 1; i = taken[i]) replicas.push_back(size[i]);
  // Each rank that is left widens the narrowest stage, the first of equal ones.
  const int left = ranks_in_all - std::accumulate(replicas.begin(), replicas.end(), 0);
  for (int i = 0; i < left; ++i) {
    const auto least = std::min_element(replicas.begin(), replicas.end());
    if (*least >= most) return {};
    ++*least;
  }
  return replicas;
}

}  // namespace millrace
