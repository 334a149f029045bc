// The trials in the journal: steps that are done, and how far others have come. LibTorch-free.
#pragma once

#include <optional>
#include <string>

#include "experiments/sweep/journal.h"
#include "experiments/sweep/tune_results.h"

namespace millrace {

/// The place of a trial after some iterations: a run folder with its checkpoint.
struct TrialPlace {
  int at = 0;
  std::string folder;
  int member = -1;     ///< its place in its array; -1: it ran alone
  double runtime = 0;  ///< seconds of the step that is under way, as TrialResult's

  /// Returns the place as `millrace fuse` takes it.
  std::string text() const { return place_text(folder, member); }
};

class TuneJournal {
 public:
  /// Both outlive it.
  TuneJournal(const TuneSpec& spec, Journal& journal) : spec_(spec), journal_(journal) {}

  std::optional<TrialResult> result(const TrialStep& step) const;
  /// Returns the place of a step that other steps' arrays have taken on, or nothing if it has not begun. It
  /// stays when the step is done.
  std::optional<TrialPlace> progress(const TrialStep& step) const;

  // These lines are on disk when the functions return. They throw ConfigError if that cannot be.
  void record(const TrialResult& result);
  void record(const TrialStep& step, const TrialPlace& progress);

 private:
  std::string relative(const std::string& folder) const;
  void write(const std::string& key, Json json);

  const TuneSpec& spec_;
  Journal& journal_;
};

}  // namespace millrace
