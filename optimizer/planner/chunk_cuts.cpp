#include "optimizer/planner/chunk_cuts.h"

#include <algorithm>
#include <functional>
#include <map>

namespace millrace {
namespace {

constexpr double kMostCutsCompared = 5'000;
constexpr double kMostMoveWork = 200'000;  // moves tried x stages

using Cuts = std::vector<int>;

/// Estimates the seconds of a step in about a microsecond. The estimate serves only to order candidates.
class Score {
 public:
  Score(const CostModel& model, const CutSpace& space, const Layout& layout)
      : model_(model), space_(space), layout_(layout), first_pass_(layout.stages() / layout.chunks) {
    std::map<int, int> places;
    std::map<std::pair<int, int>, int> wires;
    for (int s = 0; s < layout.stages(); ++s) {
      const RankId rank = layout.ranks[s].front();
      place_.push_back(places.emplace(rank.value, static_cast<int>(places.size())).first->second);
      if (s + 1 == layout.stages()) break;
      const RankId next = layout.ranks[s + 1].front();
      if (rank == next) {
        hops_.push_back({});
        continue;
      }
      const std::pair ends(rank.value, next.value);
      const double latency = transfer_seconds(model.cluster(), rank, next, 0);
      hops_.push_back({.wire = wires.emplace(ends, static_cast<int>(wires.size())).first->second,
                       .latency = latency,
                       .per_byte = (transfer_seconds(model.cluster(), rank, next, kGiB) - latency) / kGiB});
    }
    busy_.resize(places.size());
    wire_.resize(wires.size());
  }

  double operator()(const Cuts& cuts) {
    ++evaluations_;
    std::fill(busy_.begin(), busy_.end(), 0.0);
    std::fill(wire_.begin(), wire_.end(), 0.0);
    double fill = 0;
    const int stages = layout_.stages();
    for (int s = 0; s < stages; ++s) {
      const int a = s == 0 ? 0 : cuts[s - 1];
      const int b = s + 1 == stages ? space_.last() : cuts[s];
      const int sheet = layout_.sheets[s].front();
      busy_[place_[s]] += layout_.rounds[s] * space_.compute_s(sheet, a, b) +
                          model_.update_s_per_byte(sheet) * static_cast<double>(space_.parameters(a, b));
      double hop = 0;
      if (s + 1 < stages && hops_[s].wire >= 0) {
        hop = hops_[s].latency + hops_[s].per_byte * static_cast<double>(space_.live_bytes(b));
        wire_[hops_[s].wire] += layout_.rounds[s] * hop;
      }
      if (s < first_pass_) fill += space_.forward_s(sheet, a, b) + 2 * hop;
    }
    double most = 0;
    for (double seconds : busy_) most = std::max(most, seconds);
    for (double seconds : wire_) most = std::max(most, seconds);
    return most + fill;
  }
  /// Returns the number of stages looked at so far.
  double work() const { return static_cast<double>(evaluations_) * layout_.stages(); }

 private:
  struct Hop {
    int wire = -1;  // -1: the next stage is on the same rank
    double latency = 0;
    double per_byte = 0;
  };
  const CostModel& model_;
  const CutSpace& space_;
  const Layout& layout_;
  const int first_pass_;      // number of stages before the first rank comes again
  std::vector<int> place_;    // indexed by stage
  std::vector<Hop> hops_;     // indexed by stage: the message behind it; the last stage has none
  std::vector<double> busy_;  // indexed by place: seconds
  std::vector<double> wire_;  // indexed by wire, a pair of places: seconds
  long evaluations_ = 0;
};

double choices(int of, int pick) {
  double count = 1;
  for (int i = 0; i < pick; ++i) count = count * (of - i) / (i + 1);
  return count;
}

void every_cut(Cuts& cuts, int stages, int last, const std::function<void(const Cuts&)>& visit) {
  if (static_cast<int>(cuts.size()) + 1 == stages) {
    visit(cuts);
    return;
  }
  const int left = stages - 1 - static_cast<int>(cuts.size());
  for (int b = cuts.empty() ? 1 : cuts.back() + 1; b + left <= last; ++b) {
    cuts.push_back(b);
    every_cut(cuts, stages, last, visit);
    cuts.pop_back();
  }
}

/// Returns `cuts` with border i, and with `pair` also i + 1, moved by `move`. Returns an empty list if a
/// stage would have no layers.
Cuts moved(const Cuts& cuts, std::size_t i, bool pair, int move, int last) {
  Cuts result = cuts;
  const std::size_t end = i + (pair ? 2 : 1);
  if (end > cuts.size()) return {};
  for (std::size_t k = i; k < end; ++k) result[k] += move;
  const int before = i == 0 ? 0 : result[i - 1];
  const int after = end == cuts.size() ? last : result[end];
  if (result[i] <= before || result[end - 1] >= after) return {};
  return result;
}

Cuts improved(Score& score, Cuts cuts, int last) {
  double best = score(cuts);
  for (bool better = true; better;) {
    better = false;
    for (int move = std::max(1, last / 32); move >= 1; move /= 2) {
      for (std::size_t i = 0; i < cuts.size(); ++i) {
        if (score.work() > kMostMoveWork) return cuts;
        for (const auto& [pair, step] :
             {std::pair(false, -move), {false, move}, {true, -move}, {true, move}}) {
          Cuts next = moved(cuts, i, pair, step, last);
          if (next.empty()) continue;
          const double found = score(next);
          if (found >= best) continue;
          best = found;
          cuts = std::move(next);
          better = true;
        }
      }
    }
  }
  return cuts;
}

}  // namespace

std::vector<std::vector<int>> likely_chunk_cuts(const CostModel& model, const CutSpace& space,
                                                const Layout& layout, const std::vector<int>& start,
                                                std::size_t most) {
  Score score(model, space, layout);
  if (choices(space.last() - 1, layout.stages() - 1) > kMostCutsCompared) {
    if (start.empty()) return {};
    Cuts better = improved(score, start, space.last());
    if (better == start) return {start};
    return {std::move(better), start};
  }
  std::vector<std::pair<double, Cuts>> found;
  Cuts cuts;
  every_cut(cuts, layout.stages(), space.last(),
            [&](const Cuts& one) { found.emplace_back(score(one), one); });
  most = std::min(most, found.size());
  std::partial_sort(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(most), found.end());
  std::vector<Cuts> likely;
  for (std::size_t i = 0; i < most; ++i) likely.push_back(std::move(found[i].second));
  return likely;
}

}  // namespace millrace
