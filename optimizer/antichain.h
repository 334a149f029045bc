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

/// A fixed-width set of small integers; sets of one family share their width.
class BitSet {
 public:
  BitSet() = default;
  explicit BitSet(std::size_t width) : words_((width + 63) / 64) {}

  bool test(std::size_t i) const { return (words_[i >> 6] >> (i & 63)) & 1; }
  void insert(std::size_t i) { words_[i >> 6] |= std::uint64_t{1} << (i & 63); }
  void erase(std::size_t i) { words_[i >> 6] &= ~(std::uint64_t{1} << (i & 63)); }
  BitSet& operator|=(const BitSet& other);
  BitSet& operator-=(const BitSet& other);
  bool intersects(const BitSet& other) const;
  std::vector<int> members() const;  ///< ascending
  bool operator==(const BitSet&) const = default;
  std::size_t hash() const;

 private:
  std::vector<std::uint64_t> words_;
};

/// Every state with what lies before it, flat arrays indexed by state. States are numbered by growing compute
/// time, then by size, so a state's ancestors have smaller numbers and `compute_s` never falls.
struct AntichainStates {
  std::vector<double> compute_s;         ///< forward + backward of the closure
  std::vector<double> parameter_bytes;   ///< of the closure
  std::vector<double> activation_bytes;  ///< of the closure
  std::vector<double> output_bytes;      ///< what a cut behind this state sends (augmented antichain)
  std::vector<BitSet> closure;           ///< node indices of the graph: the antichain and all its ancestors
  std::vector<BitSet> ancestors;         ///< states that come strictly before
  std::vector<int> inputs;               ///< `Input*` sources, dropped before and put back into stage 0

  int size() const { return static_cast<int>(compute_s.size()); }
  int last() const { return size() - 1; }
};

/// A graph with many parallel branches has exponentially many states (Inception-v3: 221,564).
inline constexpr int kMaxAntichainStates = 20'000;

/// Drops `Input*` sources and `__getitem__*` sinks, then closes the first source under "next antichain".
/// Problem: empty graph, cycle, negative cost, more than `max_states`, nodes that no state reaches.
Result<AntichainStates> enumerate_antichains(const PipeDreamGraph& graph,
                                             int max_states = kMaxAntichainStates);

}  // namespace millrace
