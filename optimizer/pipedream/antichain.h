// The states PipeDream cuts between: antichains of the layer graph, each standing for "everything up to
// here". LibTorch-free. Source: PipeDream (SOSP'19) section 3.1 and its planner's behaviour,
// docs/planning.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/plan/pipedream_formats.h"

namespace millrace {

/// Every state with what lies before it, flat arrays indexed by state. States are numbered by growing compute
/// time, then by size, so what comes before a state has a smaller number and `compute_s` never falls. Times
/// and bytes are rounded to a grid on which their sums are exact: a difference of two states is the same
/// number whichever way it was added up.
struct AntichainStates {
  std::vector<double> compute_s;         ///< forward + backward of the closure
  std::vector<double> parameter_bytes;   ///< of the closure
  std::vector<double> activation_bytes;  ///< of the closure
  std::vector<double> output_bytes;      ///< what a cut behind this state sends (augmented antichain)
  std::vector<int> inputs;               ///< `Input*` sources, dropped before and put back into stage 0
  std::size_t words = 0;                 ///< 64-bit words of one closure
  std::vector<std::uint64_t> closures;   ///< [state][words]: bit v is node v of the graph

  int size() const { return static_cast<int>(compute_s.size()); }
  int last() const { return size() - 1; }
  const std::uint64_t* closure(int state) const {
    return closures.data() + static_cast<std::size_t>(state) * words;
  }
  /// The states between which a stage may lie: `earlier` is a proper part of `later`.
  bool precedes(int earlier, int later) const {
    if (earlier >= later) return false;
    const std::uint64_t* a = closure(earlier);
    const std::uint64_t* b = closure(later);
    for (std::size_t w = 0; w < words; ++w) {
      if (a[w] & ~b[w]) return false;
    }
    return true;
  }
  /// Nodes after `from` (-1: the start) up to `to`, in file order; without `inputs`.
  std::vector<int> nodes_between(int from, int to) const;
};

/// A graph with many parallel branches has exponentially many states.
inline constexpr int kMaxAntichainStates = 2'000'000;

/// Drops `Input*` sources and `__getitem__*` sinks, then closes the first source under "next antichain".
/// Problem: empty graph, cycle, negative cost, more than `max_states`, nodes that no state reaches.
Result<AntichainStates> enumerate_antichains(const PipeDreamGraph& graph,
                                             int max_states = kMaxAntichainStates);

}  // namespace millrace
