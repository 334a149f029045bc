// What the files of a run's folder say about the run: whether it goes on, how far it is, how it ended.
// LibTorch-free.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/run_folder.h"

namespace millrace {

enum class RankState {
  Starting,  ///< it has not begun its first step
  Healthy,
  Slow,     ///< it computes slower than at first (docs/failures.md)
  Lost,     ///< it gives no sign of life, or is gone without a word
  Failed,   ///< it is the one that failed first
  Stopped,  ///< it ended because another one failed, or because it was asked to
  Done
};
constexpr auto names_of(RankState) {
  return std::to_array<std::string_view>(
      {"starting", "healthy", "slow", "lost", "failed", "stopped", "done"});
}

/// What a rank does, as its status file says. The rank may have been killed while it wrote: what cannot be
/// read is "-".
struct RankStatus {
  std::string step = "-";
  std::string action = "-";
  std::int64_t beat = 0;  ///< milliseconds since 1970 of its newest sign of life; 0: not known
  double slow = 0;        ///< it computes so many times as long as at first; 0: it does not
  RankState state = RankState::Starting;  ///< as read_run_state() judges
};
/// Without a judgement of its state. `round` is newest_round() of the output folder.
RankStatus status_of(const std::filesystem::path& round, int rank);

enum class RunPhase {
  None,     ///< no run has written here
  Running,  ///< a process holds the folder
  Done,
  Stopped,  ///< it ended early with its state saved
  Failed,   ///< a rank said why
  Ended     ///< it ended without a word, for example by SIGKILL
};
constexpr auto names_of(RunPhase) {
  return std::to_array<std::string_view>({"none", "running", "done", "stopped", "failed", "ended"});
}

struct RunState {
  RunPhase phase = RunPhase::None;
  std::optional<LockHolder> holder;  ///< of a run that goes on
  std::vector<RankStatus> ranks;
  std::int64_t step = -1;                     ///< the least of the ranks' steps; -1: not known
  std::int64_t steps = -1;                    ///< that the job asks for; -1: not known
  std::optional<double> loss;                 ///< of the last step that was logged
  std::string model;                          ///< empty: not known
  std::string checkpoint;                     ///< name of the newest; empty: none
  std::optional<RunFailure> failure;          ///< of a run that has failed
  std::filesystem::file_time_type changed{};  ///< when a rank wrote its status last
};
RunState read_run_state(const std::filesystem::path& folder);

/// Returns the newest line of a step in a rank's log.
std::optional<Json> newest_step(const std::filesystem::path& log);
/// Gives each rank whose log ends before `step` the line of a replica of its stage, which has the same
/// losses. "copied_from" in the line names that rank, whose times it has. Returns whether every log with
/// losses has the step then, and one has losses.
bool complete_logs(const std::filesystem::path& round, std::int64_t step);

/// Returns the folders of the runs at and below `folder`, in the order of their names. What is below a run
/// belongs to it.
std::vector<std::filesystem::path> runs_below(const std::filesystem::path& folder);

}  // namespace millrace
