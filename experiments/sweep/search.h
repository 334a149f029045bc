// How a search spends its budget: random search, Hyperband, ASHA. Trials are numbers; what they are and how
// they are run is not known here. Pure. LibTorch-free.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "runtime/base/choices.h"

namespace millrace {

enum class SearchKind { Random, Hyperband, Asha };
constexpr auto names_of(SearchKind) {
  return std::to_array<std::string_view>({"random", "hyperband", "asha"});
}

/// Trial `trial`, which has had `from` iterations, is to have `to`.
struct TrialStep {
  int trial = 0;
  int from = 0, to = 0;
  bool operator==(const TrialStep&) const = default;
};

/// Asks for steps and is told their scores. Decisions depend on scores and on nothing else: neither on how
/// many steps run at a time nor on which ends first. Not thread-safe.
class Search {
 public:
  virtual ~Search() = default;
  /// Returns the steps that can be decided with the scores so far, each step once. Empty: scores of steps
  /// that were given out are needed first; if none are left, the search is over.
  virtual std::vector<TrialStep> next() = 0;
  /// Greater is better; -inf: the trial failed and is not continued.
  virtual void report(const TrialStep& step, double score) = 0;
  /// Trials 0 .. num_trials() - 1 at most.
  virtual int num_trials() const = 0;
  /// Steps of different groups do not wait for each other: brackets of Hyperband. Ascends with the trial.
  virtual int group(int /*trial*/) const { return 0; }
  /// Returns whether a trial that was given out is over: next() will not ask for more of it, whatever is
  /// still reported.
  virtual bool is_over(int /*trial*/) const { return false; }
};

struct SearchOptions {
  SearchKind kind = SearchKind::Hyperband;
  int trials = 81;      ///< random, asha
  int iterations = 10;  ///< random: of each trial
  int most = 81;        ///< hyperband, asha: iterations of a trial at most (R)
  int least = 1;        ///< asha: iterations of a new trial
  int eta = 3;          ///< one of so many is continued
  int skip_last = 0;    ///< hyperband: rungs at the end of each bracket that are left out
  int lanes = 4;        ///< asha: trials at a time, in its own time
};
std::unique_ptr<Search> make_search(const SearchOptions& options);

// ---- Hyperband (arXiv 1603.06560, algorithm 1), in integers
// --------------------------------------------------

/// `trials` of them are run until they have had `iterations`.
struct Rung {
  int trials = 0;
  int iterations = 0;
  bool operator==(const Rung&) const = default;
};
/// The greatest s with eta^s <= most. HFHT's int(log R / log eta) is one less at R = 243.
int whole_log(int most, int eta);
/// The rungs of bracket s: n = ceil((s_max + 1) eta^s / (s + 1)) trials, floor(n / eta^i) of them in rung i
/// for floor(R eta^i / eta^s) iterations, at least 1. Without the last `skip_last`.
std::vector<Rung> bracket(int most, int eta, int s, int skip_last = 0);

/// Returns the iterations of each rung of ASHA (arXiv 1810.05934), ascending; the last is `most`.
std::vector<int> asha_rungs(int least, int most, int eta);

}  // namespace millrace
