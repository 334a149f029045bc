// One level of PipeDream's hierarchical dynamic programme (docs/planning.md). Internal to optimizer/.
#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <vector>

#include "optimizer/pipedream/antichain.h"
#include "optimizer/pipedream/pipedream_planner.h"

namespace millrace {

inline constexpr double kInfeasible = std::numeric_limits<double>::infinity();

class LevelSolver;

/// The best time of one component for the layers after state `from` (-1: the start) up to state `to`. At the
/// innermost level it comes from prefix sums. Else the level below computes each row on first use.
class IntervalTimes {
 public:
  explicit IntervalTimes(const AntichainStates& states) : states_(&states) {}

  /// Takes the times from `below` from now on. Times above `bound` may be missing. With `only_last`, rows
  /// that do not begin at the start may lack all states but the last. `workers` is the number of workers of
  /// all levels below.
  void use(LevelSolver& below, int workers, double bound, bool only_last);
  /// Lowers the bound for the rows that are still to be computed.
  void lower_bound_to(double bound) { bound_ = bound; }

  bool is_flat() const { return below_ == nullptr; }
  double flat(int from, int to) const {
    return states_->compute_s[to] - (from < 0 ? 0 : states_->compute_s[from]);
  }
  double at(int from, int to) const { return is_flat() ? flat(from, to) : row(from)[to]; }
  /// Returns a bound that is at most at(k, to) for every state k up to `from` (0 or more). It never grows
  /// with `from`.
  double at_most(int from, int to) const { return flat(from, to) * share_; }

 private:
  const double* row(int from) const {
    const std::vector<double>& found = rows_[from + 1];
    return found.empty() ? find_row(from) : found.data();
  }
  const double* find_row(int from) const;

  const AntichainStates* states_;
  LevelSolver* below_ = nullptr;
  double share_ = 1;  // 1 / workers, a little less because of rounding
  double bound_ = kInfeasible;
  bool only_last_ = false;
  mutable std::vector<std::vector<double>> rows_;  // [from + 1][to]; empty: not computed yet
};

struct LevelCosts {
  int machines = 1;
  double bandwidth = 1;
  int machines_below = 1;  ///< machines of the level directly below; divides the first stage's all-reduce
  int workers_below = 1;   ///< product of the machines of all levels below
};

/// A stage of one level: layers after `from` up to `to`, on `machines` components.
struct LevelStage {
  int from = -1;
  int to = 0;
  int machines = 1;
};

/// Row A(from, *, *) of the recurrence and the plan behind its entries.
class LevelSolver {
 public:
  LevelSolver(const AntichainStates& states, const PipeDreamOptions& options, LevelCosts costs,
              const IntervalTimes& times);

  /// Fills the row. Plans slower than `bound` may be left out. With `only_last`, entries from which the last
  /// state cannot be reached within `bound` may be left out too.
  void solve(int from, double bound, bool only_last);
  /// Solves with a few states only. Returns an upper bound of the time that solve() finds.
  double coarse_bound(double bound);
  /// Returns the states that can follow `from`, in ascending order.
  const std::vector<int>& candidates() const { return candidates_; }
  int machines() const { return costs_.machines; }
  double best(std::size_t candidate, int machines) const { return row_[index(candidate, machines)]; }
  double best_of_state(int to, int machines) const;

  /// Returns stages that reach best_of_state(to, all machines), which must be finite. Of several it takes the
  /// fewest stages, then the earlier splits.
  std::vector<LevelStage> stages(int to) const;

 private:
  struct Window {
    std::size_t begin = 0;
    std::size_t end = 0;
  };

  void find_candidates(int from, double bound, bool only_last);
  void use_candidates(int from, std::vector<int> candidates);
  std::vector<int> coarse_states() const;
  void solve_candidates(double bound, bool only_last);
  Window window(int machines, double bound, bool only_last) const;
  void fill(int machines, double bound, bool only_last);
  template <bool kFlat>
  void scan(std::size_t at, int machines, int last_machines, std::size_t& start, double least_useful,
            double& best) const;
  template <bool kFlat>
  double lower_bound(std::size_t split, std::size_t at, int last_machines) const;
  std::size_t first_within(std::size_t at, int last_machines, double time) const;
  double first_stage(int to, int machines) const;
  double later_stage(int from, int to, int machines, int machines_used) const;
  double transfer(int cut, int machines) const;
  bool fits(int later, int machines, int from, int to) const;
  bool is_before(std::size_t split, std::size_t at) const {
    return states_.precedes(candidates_[split], candidates_[at]);
  }
  std::size_t index(std::size_t candidate, int machines) const {
    return static_cast<std::size_t>(machines - 1) * candidates_.size() + candidate;
  }
  double bytes(const std::vector<double>& prefix, int from, int to) const {
    return prefix[to] - (from < 0 ? 0 : prefix[from]);
  }

  const AntichainStates& states_;
  const PipeDreamOptions& options_;
  const LevelCosts costs_;
  const IntervalTimes& times_;
  std::vector<double> sync_per_byte_;        // [m]: 4 (m-1) / (B m)
  std::vector<double> first_sync_per_byte_;  // [m]: the same value for the first stage
  std::vector<double> share_;                // [m]: 1 / m
  int from_ = -1;
  std::vector<int> candidates_;
  std::vector<double> compute_;     // [candidate]: compute seconds of its closure
  std::vector<double> weights_;     // [candidate]: parameter bytes of its closure
  std::vector<double> most_bytes_;  // [candidate]: largest of weights_ up to it
  std::vector<Window> windows_;     // [machines]
  std::vector<double> row_;         // [machines - 1][candidate]: best time
  std::vector<double> least_;       // [machines - 1][candidate]: least of row_ from this candidate on
  std::vector<std::size_t> starts_;
};

}  // namespace millrace
