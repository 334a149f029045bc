// tune.yaml: a job, the space of its settings, and how it is searched. LibTorch-free.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "experiments/sweep/search.h"
#include "experiments/sweep/sweep_spec.h"

namespace millrace {

enum class Goal { Max, Min };
constexpr auto names_of(Goal) {
  return std::to_array<std::string_view>({"max", "min"});
}

/// Says which checkpoints stay when the search is over.
enum class KeptCheckpoints { Best, All };
constexpr auto names_of(KeptCheckpoints) {
  return std::to_array<std::string_view>({"best", "all"});
}

/// Fused: whether trials of different rungs may be one array. Auto: where that was measured to be faster.
enum class MixedArrays { Auto, Always, Never };
constexpr auto names_of(MixedArrays) {
  return std::to_array<std::string_view>({"auto", "always", "never"});
}

struct TuneSpec : SweptFile {
  Varied space;                        ///< distributions only
  std::vector<std::string> infusible;  ///< of the space: an array has one value of each
  SearchOptions search;
  std::int64_t steps = 100;  ///< of an iteration
  std::string metric = "loss";
  Goal goal = Goal::Min;
  SweepMode mode = SweepMode::Serial;
  int at_once = 0;  ///< concurrent: processes; 0: as cores are there for
  int array = 0;    ///< fused: trials of an array at most; 0: all that go together
  MixedArrays mixed = MixedArrays::Auto;
  KeptCheckpoints keep = KeptCheckpoints::Best;

  int num_trials() const { return make_search(search)->num_trials(); }
  /// Iterations of a trial that goes to the end.
  int full() const { return search.kind == SearchKind::Random ? search.iterations : search.most; }
  /// Depends on (seed, trial) alone.
  JobSettings settings(int trial) const { return settings_of(space, seed, static_cast<std::size_t>(trial)); }
  /// Returns for each trial the first one with the same settings, which trains for all of them.
  std::vector<int> first_trials() const;
};

/// Every problem at once, as load_sweep.
Result<TuneSpec> load_tune(const std::string& path);

}  // namespace millrace
