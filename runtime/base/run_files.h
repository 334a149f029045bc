// The names of what a run writes into its folder, for those who write it and those who read it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/numbers.h"

namespace millrace {

/// Files of which every rank has one: "steps.rank3.jsonl".
struct RankFiles {
  std::string_view prefix, suffix;

  std::string of(int rank) const { return std::string(prefix) + std::to_string(rank) + std::string(suffix); }
  /// Returns the rank whose file is called `name`; nothing if it is none of these files.
  std::optional<int> rank_of(std::string_view name) const {
    if (name.size() <= prefix.size() + suffix.size() || !name.starts_with(prefix) || !name.ends_with(suffix))
      return std::nullopt;
    name.remove_prefix(prefix.size());
    name.remove_suffix(suffix.size());
    const std::optional<int> rank = number_of<int>(name);
    return rank && *rank >= 0 ? rank : std::nullopt;
  }
};

namespace run_files {

inline constexpr RankFiles kSteps{"steps.rank", ".jsonl"};     ///< a line for each step
inline constexpr RankFiles kTrace{"trace.rank", ".json"};      ///< spans of some steps
inline constexpr RankFiles kStatus{"status.rank", ".json"};    ///< what the rank does now
inline constexpr RankFiles kFailure{"failure.rank", ".json"};  ///< why the rank ended before its end
/// Folders, each of a run by itself: the rounds in which jobs are trained (docs/fusion.md). "round1"
inline constexpr RankFiles kRounds{"round", ""};
inline constexpr const char* kPlan = "plan.json";
inline constexpr const char* kSchedule = "schedule.csv";  ///< of a plan with a schedule of its own
inline constexpr const char* kJobs = "jobs.csv";          ///< of a job array: a line for each step and job
inline constexpr const char* kSummary = "summary.json";
inline constexpr const char* kReport = "report.html";
inline constexpr const char* kCheckpoints = "checkpoints";  ///< folder of step-N and `latest`
/// Folders in `checkpoints`: the later steps of a branch that a return to an older step left.
inline constexpr RankFiles kAbandoned{"abandoned-", ""};
inline constexpr const char* kHypotheses = "bleu";  ///< folder of step-N: translations of one text
inline constexpr const char* kBleu = "bleu.json";   ///< scores of `bleu --run`
inline constexpr const char* kLock = "run.lock";
inline constexpr const char* kProbe = ".shared.tmp.";  ///< before the first step: do all ranks see it?

}  // namespace run_files

}  // namespace millrace
