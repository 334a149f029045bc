// The names of the files in a run's folder. Writers and readers share them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/numbers.h"

namespace millrace {

/// The names of a per-rank file: "steps.rank3.jsonl".
struct RankFiles {
  std::string_view prefix, suffix;

  std::string of(int rank) const { return std::string(prefix) + std::to_string(rank) + std::string(suffix); }
  /// Returns the rank whose file is called `name`; nothing if `name` is not one of these files.
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

inline constexpr RankFiles kSteps{"steps.rank", ".jsonl"};  ///< one line for each step
inline constexpr RankFiles kTrace{"trace.rank", ".json"};   ///< spans of some steps
/// counters of the rank's process and host, every second
inline constexpr RankFiles kCounters{"counters.rank", ".jsonl"};
inline constexpr RankFiles kStatus{"status.rank", ".json"};    ///< the rank's current action
inline constexpr RankFiles kFailure{"failure.rank", ".json"};  ///< why the rank ended before its end
inline constexpr RankFiles kFlight{"flight.rank", ".bin"};     ///< its last actions and messages
/// Folders of the rounds in which jobs are trained (docs/fusion.md): "round1". Each contains the files of its
/// own run.
inline constexpr RankFiles kRounds{"round", ""};
inline constexpr const char* kPlan = "plan.json";
inline constexpr const char* kSchedule = "schedule.csv";  ///< only if the plan has a schedule of its own
inline constexpr const char* kJobs = "jobs.csv";  ///< only of a job array: one line for each step and job
inline constexpr const char* kSummary = "summary.json";
/// The cause of the run's failure, and which ranks waited for which: the report of `millrace explain`, as
/// JSON.
inline constexpr const char* kFailureSummary = "failure.json";
inline constexpr const char* kReport = "report.html";
inline constexpr const char* kCheckpoints = "checkpoints";  ///< a folder with step-N and `latest`
inline constexpr const char* kBest = "best";  ///< a folder like kCheckpoints, with the best checkpoint
/// The checkpoints of one host's ranks, where each host has its own output folder.
inline constexpr RankFiles kHostCheckpoints{"checkpoints.host", ""};
/// Folders in `checkpoints`. A run that returns to an older step moves its later checkpoints there.
inline constexpr RankFiles kAbandoned{"abandoned-", ""};
inline constexpr const char* kHypotheses = "bleu";  ///< a folder with step-N: translations of one text
inline constexpr const char* kBleu = "bleu.json";   ///< scores of `bleu --run`
inline constexpr const char* kLock = "run.lock";
/// Written before the first step to find out whether all ranks see the folder.
inline constexpr const char* kProbe = ".shared.tmp.";

}  // namespace run_files

}  // namespace millrace
