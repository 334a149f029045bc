#include "optimizer/planner/chunk_cuts.h"

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>

#include "optimizer/planner/found.h"

namespace millrace {
namespace {

constexpr double kMostCutsCompared = 5'000;
constexpr double kMostMoveWork = 200'000;  // moves tried x stages

constexpr int kMostFolds = 64;  // states that folded cuts are made of

using Cuts = std::vector<int>;

/// Returns the tensors that are read by a layer other than the next one.
std::vector<const CutSpace::Tensor*> skips_of(const CutSpace& space) {
  std::vector<const CutSpace::Tensor*> skips;
  for (const CutSpace::Tensor& tensor : space.tensors())
    if (tensor.readers.back() > tensor.producer + 1) skips.push_back(&tensor);
  return skips;
}

/// Estimates the seconds of a step in about a microsecond. The estimate serves only to order candidates.
class Score {
 public:
  Score(const CostModel& model, const CutSpace& space, const Layout& layout)
      : model_(model),
        space_(space),
        layout_(layout),
        first_pass_(layout.stages() / layout.chunks),
        skips_(skips_of(space)) {
    std::map<int, int> places;
    for (int s = 0; s < layout.stages(); ++s)
      place_.push_back(
          places.emplace(layout.ranks[s].front().value, static_cast<int>(places.size())).first->second);
    busy_.resize(places.size());
    hops_.resize(places.size() * places.size());
    for (int b = 0; b < space.states(); ++b) next_bytes_.push_back(space.live_bytes(b));
    for (const CutSpace::Tensor* skip : skips_)
      for (int b = skip->producer + 1; b <= skip->readers.back(); ++b)
        next_bytes_[b] = std::max<Bytes>(0, next_bytes_[b] - skip->bytes);
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
                          model_.update_s_per_byte(sheet) * static_cast<double>(space_.touched(a, b));
      double hop = 0;
      if (s + 1 < stages && place_[s] != place_[s + 1]) {
        const Hop& next = hop_between(s, s + 1);
        hop = next.latency + next.per_byte * static_cast<double>(next_bytes_[b]);
        wire_[next.wire] += layout_.rounds[s] * hop;
      }
      if (s < first_pass_) fill += space_.forward_s(sheet, a, b) + 2 * hop;
    }
    for (const CutSpace::Tensor* skip : skips_) send(*skip, cuts);
    double most = 0;
    for (double seconds : busy_) most = std::max(most, seconds);
    for (double seconds : wire_) most = std::max(most, seconds);
    return most + fill;
  }
  /// Returns the number of stages looked at so far.
  double work() const {
    return static_cast<double>(evaluations_) *
           (layout_.stages() + static_cast<double>(skips_.size()) / kSkipsOfAStage);
  }

 private:
  static constexpr double kSkipsOfAStage = 4;  // tensors that take as long to look at as a stage
  struct Hop {
    int wire = -1;  // -1: not asked for yet
    double latency = 0;
    double per_byte = 0;
  };

  const Hop& hop_between(int from, int to) {
    Hop& hop = hops_[static_cast<std::size_t>(place_[from]) * busy_.size() + place_[to]];
    if (hop.wire >= 0) return hop;
    const RankId sender = layout_.ranks[from].front(), receiver = layout_.ranks[to].front();
    hop.wire = static_cast<int>(wire_.size());
    hop.latency = transfer_seconds(model_.cluster(), sender, receiver, 0);
    hop.per_byte = (transfer_seconds(model_.cluster(), sender, receiver, kGiB) - hop.latency) / kGiB;
    wire_.push_back(0);
    return hop;
  }

  /// Adds the messages of a tensor from its stage to each later one that reads it, on another rank.
  void send(const CutSpace::Tensor& tensor, const Cuts& cuts) {
    const auto stage_of = [&](int layer) {
      return static_cast<int>(std::ranges::upper_bound(cuts, layer) - cuts.begin());
    };
    const int from = stage_of(tensor.producer);
    int before = from;
    for (const int reader : tensor.readers) {
      const int to = stage_of(reader);
      if (to == before) continue;
      before = to;
      if (place_[to] == place_[from]) continue;
      const Hop& hop = hop_between(from, to);
      wire_[hop.wire] += layout_.rounds[from] * hop.per_byte * static_cast<double>(tensor.bytes);
    }
  }

  const CostModel& model_;
  const CutSpace& space_;
  const Layout& layout_;
  const int first_pass_;    // number of stages before the first rank comes again
  std::vector<int> place_;  // indexed by stage
  const std::vector<const CutSpace::Tensor*> skips_;
  std::vector<Bytes> next_bytes_;  // indexed by state: live bytes without skips_
  std::vector<Hop> hops_;          // indexed by sending and receiving place
  std::vector<double> busy_;       // indexed by place: seconds
  std::vector<double> wire_;       // indexed by wire, in the order in which pairs of places came up: seconds
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
  const double most_work = score.work() + kMostMoveWork;
  for (bool better = true; better;) {
    better = false;
    for (int move = std::max(1, last / 32); move >= 1; move /= 2) {
      for (std::size_t i = 0; i < cuts.size(); ++i) {
        if (score.work() > most_work) return cuts;
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

/// Finds the folded cut of a V whose busiest rank takes least if it waits for its messages. Place r has the
/// layers between states (a, a') and (c', c), place r + 1 those inside of (a', c'), and so on. In a V ranks
/// do wait for large messages, which Score does not know.
class Folds {
 public:
  Folds(const CostModel& model, const CutSpace& space, const Layout& layout)
      : model_(model), space_(space), layout_(layout), places_(layout.stages() / 2) {
    choose_states();
    count_messages();
  }

  /// Returns the ends of all stages but the last; empty: there are too few layers.
  Cuts best() {
    const std::size_t n = states_.size();
    std::vector<std::vector<double>> worst(places_, std::vector<double>(n * n, kInfinite));
    std::vector<std::vector<std::pair<std::size_t, std::size_t>>> from(
        places_, std::vector<std::pair<std::size_t, std::size_t>>(n * n));
    worst[0][n - 1] = 0;  // all layers are inside
    for (int r = 0; r + 1 < places_; ++r) {
      for (std::size_t a = 0; a < n; ++a)
        for (std::size_t c = a + 1; c < n; ++c)
          if (worst[r][a * n + c] < kInfinite) extend(r, a, c, worst, from);
    }
    double least = kInfinite;
    std::size_t inner = 0;
    for (std::size_t a = 0; a < n; ++a)
      for (std::size_t c = a + 1; c < n; ++c) {
        if (states_[c] - states_[a] < 2) continue;
        const double value =
            std::max(worst[places_ - 1][a * n + c],
                     busy(places_ - 1, states_[a], states_[c]) + messages_s(places_ - 1, a * n + c));
        if (value < least) std::tie(least, inner) = std::pair(value, a * n + c);
      }
    if (least == kInfinite) return {};
    Cuts cuts{middle(states_[inner / n], states_[inner % n])};
    for (int r = places_ - 1; r > 0; --r) {
      cuts.push_back(states_[inner / n]);
      cuts.push_back(states_[inner % n]);
      const auto [a, c] = from[r][inner];
      inner = a * n + c;
    }
    std::ranges::sort(cuts);
    return cuts;
  }

 private:
  /// Takes all states, or those that the fewest bytes cross.
  void choose_states() {
    for (int b = 1; b < space_.last(); ++b) states_.push_back(b);
    if (std::ssize(states_) > kMostFolds) {
      std::ranges::stable_sort(states_, {}, [&](int b) { return space_.live_bytes(b); });
      states_.resize(kMostFolds);
    }
    states_.push_back(0);
    states_.push_back(space_.last());
    std::ranges::sort(states_);
  }

  /// Counts the bytes into and out of the layers between each two states.
  void count_messages() {
    const std::size_t n = states_.size();
    bytes_.assign(n * n, {0, 0});
    for (std::size_t a = 0; a < n; ++a)
      for (std::size_t c = a + 1; c < n; ++c)
        for (const CutSpace::Tensor& tensor : space_.tensors()) {
          const bool made_before = tensor.producer < states_[a], made_behind = tensor.producer >= states_[c];
          if (made_behind) continue;
          if (made_before) {
            const auto reader = std::ranges::lower_bound(tensor.readers, states_[a]);
            if (reader != tensor.readers.end() && *reader < states_[c])
              bytes_[a * n + c].first += tensor.bytes;
          } else if (tensor.readers.back() >= states_[c]) {
            bytes_[a * n + c].second += tensor.bytes;
          }
        }
  }

  double busy(int place, int a, int b) const {
    return layout_.rounds[place] * space_.compute_s(layout_.sheets[place].front(), a, b);
  }

  /// Gives place r the layers between (a, c) and every pair of states inside of it.
  void extend(int r, std::size_t a, std::size_t c, std::vector<std::vector<double>>& worst,
              std::vector<std::vector<std::pair<std::size_t, std::size_t>>>& from) const {
    const std::size_t n = states_.size();
    const double outer = messages_s(r, a * n + c);
    for (std::size_t i = a + 1; i < c; ++i)
      for (std::size_t k = i + 1; k < c; ++k) {
        double& known = worst[r + 1][i * n + k];
        const double own = outer + busy(r, states_[a], states_[i]) + busy(r, states_[k], states_[c]);
        if (std::max(worst[r][a * n + c], own) >= known) continue;
        const double found = std::max(worst[r][a * n + c], own + messages_s(r + 1, i * n + k));
        if (found >= known) continue;
        known = found;
        from[r + 1][i * n + k] = {a, c};
      }
  }

  /// Returns the seconds of the messages into and out of the layers of `place` and those inside of it.
  double messages_s(int place, std::size_t states) const {
    if (place == 0) return 0;
    const RankId outer = layout_.ranks[place - 1].front(), inner = layout_.ranks[place].front();
    const auto& [in, out] = bytes_[states];
    return layout_.rounds[place] * std::max(transfer_seconds(model_.cluster(), outer, inner, in),
                                            transfer_seconds(model_.cluster(), inner, outer, out));
  }

  /// Returns the state that halves the innermost place's layers by time.
  int middle(int a, int c) const {
    const int place = places_ - 1;
    int at = a + 1;
    while (at + 1 < c && busy(place, a, at) < busy(place, at, c)) ++at;
    return at;
  }

  const CostModel& model_;
  const CutSpace& space_;
  const Layout& layout_;
  const int places_;
  std::vector<int> states_;
  std::vector<std::pair<Bytes, Bytes>> bytes_;  // [a, c]: into and out of the layers between states a and c
};

}  // namespace

std::vector<std::vector<int>> likely_chunk_cuts(const CostModel& model, const CutSpace& space,
                                                const Layout& layout, const std::vector<int>& start,
                                                std::size_t most) {
  Score score(model, space, layout);
  const bool folds = is_v_shaped(layout.kind) && !skips_of(space).empty();
  const Cuts folded = folds ? Folds(model, space, layout).best() : Cuts();
  if (choices(space.last() - 1, layout.stages() - 1) > kMostCutsCompared) {
    std::vector<Cuts> starts;
    for (const Cuts& one : {start, folded})
      if (!one.empty()) starts.push_back(one);
    std::vector<Cuts> likely;
    for (const Cuts& one : starts) likely.push_back(improved(score, one, space.last()));
    std::ranges::stable_sort(likely, {}, std::ref(score));
    for (Cuts& one : starts)
      if (std::ranges::find(likely, one) == likely.end()) likely.push_back(std::move(one));
    likely.resize(std::min(most, likely.size()));
    return likely;
  }
  std::vector<std::pair<double, Cuts>> found;
  Cuts cuts;
  every_cut(cuts, layout.stages(), space.last(),
            [&](const Cuts& one) { found.emplace_back(score(one), one); });
  most = std::min(most, found.size());
  std::partial_sort(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(most), found.end());
  std::vector<Cuts> likely;
  for (std::size_t i = 0; i < most; ++i) likely.push_back(std::move(found[i].second));
  if (!folded.empty() && std::ranges::find(likely, folded) == likely.end()) likely.back() = folded;
  return likely;
}

}  // namespace millrace
