#include "optimizer/level_solver.h"

#include <algorithm>
#include <cmath>

namespace millrace {
namespace {

// Lower bounds are compared with sums that round differently; this keeps them below.
constexpr double kBoundSlack = 1 - 1e-12;

double ceil_ratio(int a, int b) {
  return static_cast<double>((a + b - 1) / b);
}

}  // namespace

LevelSolver::LevelSolver(const AntichainStates& states, const PipeDreamOptions& options, LevelCosts costs,
                         const IntervalTimes& times)
    : states_(states), options_(options), costs_(costs), times_(times) {
  sync_per_byte_.resize(static_cast<std::size_t>(costs.machines) + 1);
  for (int m = 1; m <= costs.machines; ++m) sync_per_byte_[m] = 4.0 * (m - 1) / (costs.bandwidth * m);
}

bool LevelSolver::fits(double factor, int from, int to) const {
  if (!options_.memory_bytes) return true;
  const double stashed = bytes(states_.activation_bytes, from, to) + bytes(states_.parameter_bytes, from, to);
  return factor * stashed <= *options_.memory_bytes;
}

double LevelSolver::first_stage(int from, int to, int machines) const {
  if (options_.straight && machines > 1) return kInfeasible;
  if (!fits(ceil_ratio(costs_.machines - machines, machines), from, to)) return kInfeasible;
  const double sync =
      sync_per_byte_[machines] * bytes(states_.parameter_bytes, from, to) / costs_.machines_below;
  return (times_.at(from, to) + sync) / machines;
}

double LevelSolver::later_stage(int from, int to, int machines, int machines_used) const {
  if (!fits(ceil_ratio(costs_.machines - machines_used, machines), from, to)) return kInfeasible;
  const double sync = sync_per_byte_[machines] * bytes(states_.parameter_bytes, from, to);
  double time = (times_.at(from, to) + sync) / machines;
  if (options_.activation_compression) {
    double sent = states_.output_bytes[from];
    if (to != states_.last()) sent = std::max(sent, states_.output_bytes[to]);
    time = std::max(time, 2 * sent / (costs_.bandwidth * machines * *options_.activation_compression));
  }
  return time;
}

// Splits before candidate `stop` with the last stage on `last_machines`: from the balanced split outwards,
// each direction until the side that only grows there is by itself slower than the best known.
void LevelSolver::scan(std::ptrdiff_t stop, int machines, int last_machines, double& best) const {
  const int to = candidates_[stop];
  const int rest = machines - last_machines;
  const double begin = from_ < 0 ? 0 : states_.compute_s[from_];
  const double end = states_.compute_s[to];
  const double to_last = kBoundSlack / (static_cast<double>(costs_.workers_below) * last_machines);
  const double to_rest = kBoundSlack / (static_cast<double>(costs_.workers_below) * rest);
  const BitSet& ancestors = states_.ancestors[to];
  const double* const before = row_.data() + index(0, rest);
  const double* const compute = candidate_compute_.data();
  const int* const states = candidates_.data();
  const auto consider = [&](int split) {
    if (before[split] >= best || !ancestors.test(split)) return;
    best = std::min(best, std::max(before[split], later_stage(split, to, last_machines, machines)));
  };
  const double balanced = begin + (end - begin) * rest / machines;
  const auto middle = std::lower_bound(compute, compute + stop, balanced) - compute;
  for (auto at = middle - 1; at >= 0 && (end - compute[at]) * to_last < best; --at) consider(states[at]);
  for (auto at = middle; at < stop && (compute[at] - begin) * to_rest < best; ++at) consider(states[at]);
}

double LevelSolver::entry(std::ptrdiff_t at, int machines, double bound) const {
  const int to = candidates_[at];
  double best = first_stage(from_, to, machines);
  if (options_.use_fewer_machines && machines > 1) best = std::min(best, row_[index(to, machines - 1)]);
  // Above the bound nothing matters: start just past it so that the scan stops early.
  const double limit = std::nextafter(bound, kInfeasible);
  double found = std::min(best, limit);
  const int most = options_.straight ? 1 : machines - 1;
  for (int last = 1; last <= std::min(most, machines - 1); ++last) scan(at, machines, last, found);
  return found < limit ? found : best;
}

void LevelSolver::solve(int from, const std::vector<int>& candidates, double bound, bool only_last) {
  from_ = from;
  candidates_.clear();
  for (int state : candidates) {
    if (comparable(state)) candidates_.push_back(state);
  }
  candidate_compute_.clear();
  for (int state : candidates_) candidate_compute_.push_back(states_.compute_s[state]);
  row_.assign(states_.compute_s.size() * static_cast<std::size_t>(costs_.machines), kInfeasible);

  const double begin = from < 0 ? 0 : states_.compute_s[from];
  const double total = states_.compute_s.back();
  const double room = bound * costs_.workers_below / kBoundSlack;
  for (std::size_t at = 0; at < candidates_.size(); ++at) {
    const int to = candidates_[at];
    for (int m = 1; m <= costs_.machines; ++m) {
      if (states_.compute_s[to] - begin > room * m) continue;
      if (only_last && total - states_.compute_s[to] > room * (costs_.machines - m)) continue;
      row_[index(to, m)] = entry(static_cast<std::ptrdiff_t>(at), m, bound);
    }
  }
}

std::vector<LevelStage> LevelSolver::stages(int to) const {
  // Breadth first from the end: layer d holds the (state, machines) that d stages lead on from within the
  // best time; the first layer that one stage can close has the fewest stages.
  struct Place {
    int state;
    int machines;
    int next;            // index of the place that follows; -1 at the end
    int stage_machines;  // of the stage between the two
  };
  const double best_time = best(to, costs_.machines);
  std::vector<Place> places{{to, costs_.machines, -1, 0}};
  std::vector<bool> seen(row_.size());
  seen[index(to, costs_.machines)] = true;
  std::size_t layer = 0;
  const auto leave_idle = [&](std::size_t begin) {
    if (!options_.use_fewer_machines) return;
    for (std::size_t at = begin; at < places.size(); ++at) {
      const Place place = places[at];
      if (place.machines == 1 || seen[index(place.state, place.machines - 1)]) continue;
      if (best(place.state, place.machines - 1) > best_time) continue;
      seen[index(place.state, place.machines - 1)] = true;
      places.push_back({place.state, place.machines - 1, place.next, place.stage_machines});
    }
  };
  leave_idle(0);
  while (layer < places.size()) {
    const std::size_t layer_end = places.size();
    int closing = -1;
    for (std::size_t at = layer; at < layer_end; ++at) {
      const Place& place = places[at];
      if (first_stage(from_, place.state, place.machines) > best_time) continue;
      if (closing < 0 || place.state < places[closing].state) closing = static_cast<int>(at);
    }
    if (closing >= 0) {
      std::vector<LevelStage> result{{from_, places[closing].state, places[closing].machines}};
      for (int at = closing; places[at].next >= 0; at = places[at].next) {
        const int next = places[at].next;
        result.push_back({places[at].state, places[next].state, places[at].stage_machines});
      }
      return result;
    }
    for (std::size_t at = layer; at < layer_end; ++at) {
      const Place place = places[at];
      const int most = options_.straight ? 1 : place.machines - 1;
      for (int last = 1; last <= std::min(most, place.machines - 1); ++last) {
        const int rest = place.machines - last;
        for (int split : candidates_) {
          if (split >= place.state) break;
          if (seen[index(split, rest)] || best(split, rest) > best_time) continue;
          if (!states_.ancestors[place.state].test(split)) continue;
          if (later_stage(split, place.state, last, place.machines) > best_time) continue;
          seen[index(split, rest)] = true;
          places.push_back({split, rest, static_cast<int>(at), last});
        }
      }
    }
    layer = layer_end;
    leave_idle(layer_end);
  }
  MILLRACE_CHECK(false, "no stages reach the best time");
}

}  // namespace millrace
