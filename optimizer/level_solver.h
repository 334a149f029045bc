// One level of PipeDream's hierarchical dynamic programme (docs/planning.md). Internal to optimizer/.
#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <vector>

#include "optimizer/antichain.h"
#include "optimizer/planner.h"

namespace millrace {

inline constexpr double kInfeasible = std::numeric_limits<double>::infinity();

/// Best time of one component for the layers after state `from` (-1: the start) up to state `to`: prefix sums
/// at the innermost level, the level below's answers otherwise.
struct IntervalTimes {
  const AntichainStates* states = nullptr;
  std::vector<double> table;  ///< empty: prefix sums; else [from + 1][to]

  double at(int from, int to) const {
    const auto n = states->compute_s.size();
    if (!table.empty()) return table[static_cast<std::size_t>(from + 1) * n + static_cast<std::size_t>(to)];
    return states->compute_s[to] - (from < 0 ? 0 : states->compute_s[from]);
  }
};

struct LevelCosts {
  int machines = 1;
  double bandwidth = 1;
  int machines_below = 1;  ///< of the level directly below; divides the first stage's all-reduce
  int workers_below = 1;   ///< product of all levels below
};

/// A stage of one level: layers after `from` up to `to`, on `machines` components.
struct LevelStage {
  int from = -1;
  int to = 0;
  int machines = 1;
};

/// Row A(from, *, *) of the recurrence and the plan behind its last entry.
class LevelSolver {
 public:
  LevelSolver(const AntichainStates& states, const PipeDreamOptions& options, LevelCosts costs,
              const IntervalTimes& times);

  /// Fills the row for the states in `candidates` (ascending). Plans slower than `bound` may be left out.
  /// `only_last`: entries from which the last state cannot be reached within `bound` may be left out too.
  void solve(int from, const std::vector<int>& candidates, double bound, bool only_last);
  double best(int to, int machines) const { return row_[index(to, machines)]; }

  /// The stages of best(to, all machines): fewest stages, then earlier splits. Needs a finite best.
  std::vector<LevelStage> stages(int to) const;

  /// The two terms of the recurrence; infinite when the memory test discards the stage.
  double first_stage(int from, int to, int machines) const;
  double later_stage(int from, int to, int machines, int machines_used) const;

 private:
  std::size_t index(int to, int machines) const {
    return static_cast<std::size_t>(machines - 1) * states_.compute_s.size() + static_cast<std::size_t>(to);
  }
  double entry(std::ptrdiff_t at, int machines, double bound) const;  ///< at: index of a candidate
  void scan(std::ptrdiff_t stop, int machines, int last_machines, double& best) const;
  bool comparable(int to) const { return from_ < 0 || states_.ancestors[to].test(from_); }
  bool fits(double factor, int from, int to) const;
  double bytes(const std::vector<double>& prefix, int from, int to) const {
    return prefix[to] - (from < 0 ? 0 : prefix[from]);
  }

  const AntichainStates& states_;
  const PipeDreamOptions& options_;
  const LevelCosts costs_;
  const IntervalTimes& times_;
  std::vector<double> sync_per_byte_;  // [m]: 4 (m-1) / (B m)
  int from_ = -1;
  std::vector<int> candidates_;
  std::vector<double> candidate_compute_;
  std::vector<double> row_;  // [machines - 1][state]
};

}  // namespace millrace
