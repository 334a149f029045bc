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

/// All states as flat arrays indexed by state. The closure of a state is the set of layers up to it. States
/// are numbered by growing compute time, then by size. So a state's predecessors have smaller numbers, and
/// `compute_s` never falls. Times and bytes are rounded to a grid on which their sums are exact: the
/// difference of two states does not depend on the order of additions.
struct AntichainStates {
  std::vector<double> compute_s;         ///< forward + backward seconds of the closure
  std::vector<double> parameter_bytes;   ///< parameter bytes of the closure
  std::vector<double> activation_bytes;  ///< activation bytes of the closure
  std::vector<double> output_bytes;      ///< bytes that a cut behind this state sends (augmented antichain)
  std::vector<int> inputs;               ///< `Input*` sources: no state has them; stage 0 gets them back
  std::size_t words = 0;                 ///< 64-bit words of one closure
  std::vector<std::uint64_t> closures;   ///< [state][words]: bit v is node v of the graph

  int size() const { return static_cast<int>(compute_s.size()); }
  int last() const { return size() - 1; }
  const std::uint64_t* closure(int state) const {
    return closures.data() + static_cast<std::size_t>(state) * words;
  }
  /// Returns whether a stage may lie between the two states: `earlier` is a proper part of `later`.
  bool precedes(int earlier, int later) const {
    if (earlier >= later) return false;
    const std::uint64_t* a = closure(earlier);
    const std::uint64_t* b = closure(later);
    for (std::size_t w = 0; w < words; ++w) {
      if (a[w] & ~b[w]) return false;
    }
    return true;
  }
  /// Returns the nodes after `from` (-1: the start) up to `to`, in file order and without `inputs`.
  std::vector<int> nodes_between(int from, int to) const;
};

/// The limit on states: a graph with many parallel branches has exponentially many.
inline constexpr int kMaxAntichainStates = 2'000'000;

/// Drops `Input*` sources and `__getitem__*` sinks. Then finds all states that the first source leads to
/// through "next antichain". Problem: empty graph, cycle, negative cost, more than `max_states` states, nodes
/// that no state reaches.
Result<AntichainStates> enumerate_antichains(const PipeDreamGraph& graph,
                                             int max_states = kMaxAntichainStates);

}  // namespace millrace
