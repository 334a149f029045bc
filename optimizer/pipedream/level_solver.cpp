#include "optimizer/pipedream/level_solver.h"

#include <algorithm>
#include <cmath>

namespace millrace {
namespace {

// Windows of compute time are compared with times that were divided and summed. This factor keeps the windows
// wide enough in spite of rounding.
constexpr double kBoundSlack = 1 - 1e-12;

/// The set of pairs (candidate, machines) that are good enough and not yet seen. It finds the next of a row
/// in nearly constant time.
class Unseen {
 public:
  template <class Good>
  Unseen(std::size_t candidates, int machines, const Good& is_good) : stride_(candidates + 1) {
    next_.resize(stride_ * static_cast<std::size_t>(machines));
    for (int m = 1; m <= machines; ++m) {
      std::size_t* const row = this->row(m);
      row[candidates] = candidates;
      for (std::size_t at = candidates; at-- > 0;) row[at] = is_good(at, m) ? at : row[at + 1];
    }
  }
  bool has(std::size_t at, int machines) { return from(at, machines) == at; }
  void remove(std::size_t at, int machines) { row(machines)[at] = at + 1; }
  /// Returns the first one from `at` on, or the number of candidates if there is none.
  std::size_t from(std::size_t at, int machines) {
    std::size_t* const row = this->row(machines);
    while (row[at] != at) at = row[at] = row[row[at]];  // halves the path
    return at;
  }

 private:
  std::size_t* row(int machines) { return next_.data() + stride_ * static_cast<std::size_t>(machines - 1); }
  std::size_t stride_;
  std::vector<std::size_t> next_;  // [machines - 1][candidate]: itself if unseen, else a later candidate
};

}  // namespace

void IntervalTimes::use(LevelSolver& below, int workers, double bound, bool only_last) {
  below_ = &below;
  share_ = kBoundSlack / workers;
  bound_ = bound;
  only_last_ = only_last;
  rows_.resize(states_->compute_s.size() + 1);
}

const double* IntervalTimes::find_row(int from) const {
  below_->solve(from, bound_, only_last_ && from >= 0);
  std::vector<double>& row = rows_[from + 1];
  row.assign(states_->compute_s.size(), kInfeasible);
  for (std::size_t c = 0; c < below_->candidates().size(); ++c)
    row[below_->candidates()[c]] = below_->best(c, below_->machines());
  return row.data();
}

LevelSolver::LevelSolver(const AntichainStates& states, const PipeDreamOptions& options, LevelCosts costs,
                         const IntervalTimes& times)
    : states_(states), options_(options), costs_(costs), times_(times) {
  sync_per_byte_.resize(static_cast<std::size_t>(costs.machines) + 1);
  first_sync_per_byte_.resize(sync_per_byte_.size());
  share_.resize(sync_per_byte_.size());
  for (int m = 1; m <= costs.machines; ++m) {
    sync_per_byte_[m] = 4.0 * (m - 1) / (costs.bandwidth * m);
    first_sync_per_byte_[m] = sync_per_byte_[m] / costs.machines_below;
    share_[m] = 1.0 / m;
  }
}

// Returns whether a stage passes PipeDream's memory test. `later` is the number of machines of the stages
// behind it.
bool LevelSolver::fits(int later, int machines, int from, int to) const {
  if (!options_.memory_bytes) return true;
  const int factor = (later + machines - 1) / machines;
  const double stashed = bytes(states_.activation_bytes, from, to) + bytes(states_.parameter_bytes, from, to);
  return factor * stashed <= *options_.memory_bytes;
}

double LevelSolver::first_stage(int to, int machines) const {
  if (options_.straight && machines > 1) return kInfeasible;
  if (!fits(costs_.machines - machines, machines, from_, to)) return kInfeasible;
  const double sync = first_sync_per_byte_[machines] * bytes(states_.parameter_bytes, from_, to);
  return (times_.at(from_, to) + sync) * share_[machines];
}

double LevelSolver::later_stage(int from, int to, int machines, int machines_used) const {
  if (!fits(costs_.machines - machines_used, machines, from, to)) return kInfeasible;
  const double sync = sync_per_byte_[machines] * bytes(states_.parameter_bytes, from, to);
  double time = (times_.at(from, to) + sync) * share_[machines];
  if (options_.activation_compression)
    time = std::max({time, transfer(from, machines), transfer(to, machines)});
  return time;
}

// Returns the seconds that a stage on `machines` sends or receives at one of its cuts; 0 at the end of the
// model.
double LevelSolver::transfer(int cut, int machines) const {
  if (!options_.activation_compression || cut == states_.last()) return 0;
  return 2 * states_.output_bytes[cut] / (costs_.bandwidth * machines * *options_.activation_compression);
}

// Returns a lower bound of later_stage for `split` and for every split before it. It never grows with
// `split`: compute times are exact and sorted, and each operation is monotone in floating point.
template <bool kFlat>
double LevelSolver::lower_bound(std::size_t split, std::size_t at, int last_machines) const {
  const double time =
      kFlat ? compute_[at] - compute_[split] : times_.at_most(candidates_[split], candidates_[at]);
  return (time + sync_per_byte_[last_machines] * (weights_[at] - most_bytes_[split])) * share_[last_machines];
}

// Looks for a better split before candidate `at`, with the last stage on `last_machines`. With a later split
// the last stage shrinks and the rest grows. The scan goes outwards from the split where they meet. A
// direction ends when the side that only grows there is no better than the best known. Both end when the best
// known is at most `least_useful`. `start` moves with `at`.
template <bool kFlat>
void LevelSolver::scan(std::size_t at, int machines, int last_machines, std::size_t& start,
                       double least_useful, double& best) const {
  const int to = candidates_[at];
  const int rest = machines - last_machines;
  const double* const before = row_.data() + index(0, rest);
  const double* const least = least_.data() + index(0, rest);
  const std::size_t begin = windows_[rest].begin;
  const std::size_t end = std::min(windows_[rest].end, at);
  start = std::max(start, begin);
  while (start < end && least[start] < lower_bound<kFlat>(start, at, last_machines)) ++start;
  const auto consider = [&](std::size_t split) {
    if (before[split] >= best) return;
    const double time = std::max(before[split], later_stage(candidates_[split], to, last_machines, machines));
    if (time < best && is_before(split, at)) best = time;
  };
  for (std::size_t k = std::min(start, end);
       k-- > begin && lower_bound<kFlat>(k, at, last_machines) < best;) {
    if (best <= least_useful) return;
    consider(k);
  }
  for (std::size_t k = start; k < end && least[k] < best && best > least_useful; ++k) consider(k);
}

void LevelSolver::find_candidates(int from, double bound, bool only_last) {
  std::vector<int> found;
  found.reserve(states_.last() - from);
  const int most = options_.straight ? 1 : std::max(1, costs_.machines - 1);
  for (int state = from + 1; state < states_.size(); ++state) {
    if (only_last && transfer(state, most) > bound) continue;  // no stage can begin here
    if (from < 0 || states_.precedes(from, state)) found.push_back(state);
  }
  use_candidates(from, std::move(found));
}

void LevelSolver::use_candidates(int from, std::vector<int> candidates) {
  from_ = from;
  candidates_ = std::move(candidates);
  const std::size_t n = candidates_.size();
  compute_.resize(n);
  weights_.resize(n);
  most_bytes_.resize(n);
  double most = 0;
  for (std::size_t c = 0; c < n; ++c) {
    compute_[c] = states_.compute_s[candidates_[c]];
    weights_[c] = states_.parameter_bytes[candidates_[c]];
    most_bytes_[c] = most = std::max(most, weights_[c]);
  }
}

// Returns a few states: at most one for each of some equal parts of the compute time, and the last state. In
// each part it is the state that sends least among those that follow the state of the part before.
std::vector<int> LevelSolver::coarse_states() const {
  const int parts = std::min(4 * costs_.machines, states_.size() / 2);
  const double step = states_.compute_s.back() / parts;
  std::vector<int> picked;
  int state = 0;
  for (int part = 0; part < parts; ++part) {
    int best = -1;
    for (; state < states_.last() && states_.compute_s[state] <= (part + 0.5) * step; ++state) {
      if (best >= 0 && states_.output_bytes[state] >= states_.output_bytes[best]) continue;
      if (picked.empty() || states_.precedes(picked.back(), state)) best = state;
    }
    if (best >= 0) picked.push_back(best);
  }
  picked.push_back(states_.last());
  return picked;
}

double LevelSolver::coarse_bound(double bound) {
  use_candidates(-1, coarse_states());
  solve_candidates(bound, true);
  return std::min(bound, best_of_state(states_.last(), costs_.machines));
}

// Returns the candidates that `machines` components can reach within the bound. With `only_last` the other
// components must be able to reach the end from them.
LevelSolver::Window LevelSolver::window(int machines, double bound, bool only_last) const {
  const double from = from_ < 0 ? 0 : states_.compute_s[from_];
  const double room = bound * costs_.workers_below / kBoundSlack;
  const auto end = std::partition_point(compute_.begin(), compute_.end(),
                                        [&](double time) { return time - from <= room * machines; });
  auto begin = compute_.begin();
  if (only_last) {
    const double total = states_.compute_s.back();
    begin = std::partition_point(compute_.begin(), end, [&](double time) {
      return total - time > room * (costs_.machines - machines);
    });
  }
  return {static_cast<std::size_t>(begin - compute_.begin()),
          static_cast<std::size_t>(end - compute_.begin())};
}

void LevelSolver::fill(int machines, double bound, bool only_last) {
  const double limit = std::nextafter(bound, kInfeasible);
  const int most = options_.straight ? std::min(1, machines - 1) : machines - 1;
  const int others = costs_.machines - machines;
  starts_.assign(static_cast<std::size_t>(most) + 1, 0);
  double* const row = row_.data() + index(0, machines);
  for (std::size_t at = windows_[machines].begin; at < windows_[machines].end; ++at) {
    const int to = candidates_[at];
    if (only_last && to != states_.last() &&
        (others == 0 || transfer(to, options_.straight ? 1 : others) > bound))
      continue;  // no stage can follow
    double best = first_stage(to, machines);
    if (options_.use_fewer_machines && machines > 1) best = std::min(best, row_[index(at, machines - 1)]);
    // Times above the bound do not matter. The search begins just above it, so that the scan stops early.
    best = std::min(best, limit);
    for (int last = 1; last <= most; ++last) {
      const double least = transfer(to, last);
      if (least >= best) continue;
      if (times_.is_flat()) {
        scan<true>(at, machines, last, starts_[last], least, best);
      } else {
        scan<false>(at, machines, last, starts_[last], least, best);
      }
    }
    row[at] = best < limit ? best : kInfeasible;
  }
  double least = kInfeasible;
  double* const suffix = least_.data() + index(0, machines);
  for (std::size_t at = candidates_.size(); at-- > 0;) suffix[at] = least = std::min(least, row[at]);
}

void LevelSolver::solve(int from, double bound, bool only_last) {
  find_candidates(from, bound, only_last);
  solve_candidates(bound, only_last);
}

void LevelSolver::solve_candidates(double bound, bool only_last) {
  const std::size_t entries = candidates_.size() * static_cast<std::size_t>(costs_.machines);
  row_.assign(entries, kInfeasible);
  least_.resize(entries);
  windows_.assign(static_cast<std::size_t>(costs_.machines) + 1, {});
  for (int m = 1; m <= costs_.machines; ++m) {
    windows_[m] = window(m, bound, only_last);
    fill(m, bound, only_last);
  }
}

double LevelSolver::best_of_state(int to, int machines) const {
  const auto found = std::lower_bound(candidates_.begin(), candidates_.end(), to);
  if (found == candidates_.end() || *found != to) return kInfeasible;
  return best(static_cast<std::size_t>(found - candidates_.begin()), machines);
}

// Returns the first split whose lower_bound is at most `time`.
std::size_t LevelSolver::first_within(std::size_t at, int last_machines, double time) const {
  std::size_t low = 0;
  for (std::size_t high = at; low < high;) {
    const std::size_t middle = low + (high - low) / 2;
    const double bound = times_.is_flat() ? lower_bound<true>(middle, at, last_machines)
                                          : lower_bound<false>(middle, at, last_machines);
    bound > time ? low = middle + 1 : high = middle;
  }
  return low;
}

std::vector<LevelStage> LevelSolver::stages(int to) const {
  // This is a breadth-first search from the end. Layer d holds the pairs (candidate, machines) from which d
  // stages reach the end within the best time. The first layer that one more stage connects with the start
  // gives the fewest stages.
  struct Place {
    std::size_t at;
    int machines;
    int next;            // index of the place that follows; -1 at the end
    int stage_machines;  // machines of the stage between this place and the next
  };
  const auto last_at = static_cast<std::size_t>(std::lower_bound(candidates_.begin(), candidates_.end(), to) -
                                                candidates_.begin());
  const double best_time = best(last_at, costs_.machines);
  std::vector<Place> places{{last_at, costs_.machines, -1, 0}};
  Unseen unseen(candidates_.size(), costs_.machines,
                [&](std::size_t at, int machines) { return best(at, machines) <= best_time; });
  unseen.remove(last_at, costs_.machines);
  constexpr std::size_t kUnknown = std::numeric_limits<std::size_t>::max();
  std::vector<std::size_t> firsts(row_.size(), kUnknown);  // first_within of (candidate, last machines)
  std::size_t layer = 0;
  const auto leave_idle = [&](std::size_t begin) {
    if (!options_.use_fewer_machines) return;
    for (std::size_t i = begin; i < places.size(); ++i) {
      const Place place = places[i];
      if (place.machines == 1 || !unseen.has(place.at, place.machines - 1)) continue;
      unseen.remove(place.at, place.machines - 1);
      places.push_back({place.at, place.machines - 1, place.next, place.stage_machines});
    }
  };
  leave_idle(0);
  while (layer < places.size()) {
    const std::size_t layer_end = places.size();
    int closing = -1;
    for (std::size_t i = layer; i < layer_end; ++i) {
      const Place& place = places[i];
      if (first_stage(candidates_[place.at], place.machines) > best_time) continue;
      if (closing < 0 || place.at < places[closing].at) closing = static_cast<int>(i);
    }
    if (closing >= 0) {
      std::vector<LevelStage> result{{from_, candidates_[places[closing].at], places[closing].machines}};
      for (int i = closing; places[i].next >= 0; i = places[i].next) {
        const Place& next = places[places[i].next];
        result.push_back({candidates_[places[i].at], candidates_[next.at], places[i].stage_machines});
      }
      return result;
    }
    for (std::size_t i = layer; i < layer_end; ++i) {
      const Place place = places[i];
      const int most = options_.straight ? std::min(1, place.machines - 1) : place.machines - 1;
      for (int last = 1; last <= most; ++last) {
        const int rest = place.machines - last;
        if (unseen.from(0, rest) >= place.at) continue;
        std::size_t& first = firsts[index(place.at, last)];
        if (first == kUnknown) first = first_within(place.at, last, best_time);
        for (auto split = unseen.from(first, rest); split < place.at; split = unseen.from(split + 1, rest)) {
          if (later_stage(candidates_[split], candidates_[place.at], last, place.machines) > best_time)
            continue;
          if (!is_before(split, place.at)) continue;
          unseen.remove(split, rest);
          places.push_back({split, rest, static_cast<int>(i), last});
        }
      }
    }
    layer = layer_end;
    leave_idle(layer_end);
  }
  MILLRACE_CHECK(false, "no stages reach the best time");
  return {};
}

}  // namespace millrace
