// A run's folder: which run it belongs to, its lock, and what an earlier run left in it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace millrace {

/// Returns the name of this machine; empty if the machine does not say.
std::string host_name();

/// 16 hexadecimal digits from the kernel's random numbers: they tell one run's files from another's.
std::string new_run_id();

/// FOLDER/run.lock, held with flock(2) while a run writes into FOLDER: by the launcher, or by rank 0 of a job
/// without one. The kernel lets go when its holder ends, however it ends, so what a dead one left is no
/// obstacle. The file says who holds it (run, pid, host). Move-only.
class RunLock {
 public:
  RunLock() = default;  ///< holds nothing
  /// Problem: another run holds it (it is named), or the folder cannot be written. `launcher`: the process
  /// that started this one, which may hold it for us; 0: none. On a file system without locks it warns.
  static Result<RunLock> acquire(const std::filesystem::path& folder, const std::string& run,
                                 pid_t launcher = 0);
  ~RunLock();
  RunLock(RunLock&&) noexcept;
  RunLock& operator=(RunLock&&) noexcept;

 private:
  explicit RunLock(int fd) : fd_(fd) {}
  int fd_ = -1;
};

/// Says what would be lost if another run wrote into `folder`: "checkpoints up to step-00000030, a summary".
/// Empty: nothing would, for example because a run began there and never came to its first step.
std::string earlier_run(const std::filesystem::path& folder);

/// Folders of the rounds in which the jobs of `folder` are trained (run_files::kRounds), the first round
/// first.
std::vector<std::filesystem::path> rounds_in(const std::filesystem::path& folder);
/// Returns the folder into which ranks write now, or wrote last: the last round's, or `folder` without
/// rounds.
std::filesystem::path newest_round(const std::filesystem::path& folder);

/// Whether a run can go on in `folder`: a checkpoint is there, or a round that is done.
bool can_go_on(const std::filesystem::path& folder);

/// A Problem with what to do if earlier_run() finds anything.
Status check_unused(const std::filesystem::path& folder);

/// Deletes what a run writes (checkpoints, logs of steps, traces, status, summary, report) and nothing else;
/// plan.json, schedule.csv, job.yaml and logs/ stay: they may be what the new run reads, and it writes them.
Status remove_earlier_run(const std::filesystem::path& folder);

/// Why a rank ended before the run did, for whoever reads the folder later. What cannot be written is lost.
struct RunFailure {
  int rank = 0;
  std::int64_t step = -1;  ///< steps that were done; -1: not known
  int exit_code = 0;       ///< 128+n: killed by signal n
  std::string error, hint{};
};
void write_failure(const std::filesystem::path& folder, const RunFailure& failure);
/// Returns the failure that explains the others: a rank that only lost its peer gives way to one that failed
/// by itself; among equals the first to fail wins. Nothing: no rank has failed.
std::optional<RunFailure> failure_of(const std::filesystem::path& folder);
/// Deletes the failures of an earlier run, when a run takes the folder.
void remove_failures(const std::filesystem::path& folder);
/// Whether a run holds the lock now.
bool is_locked(const std::filesystem::path& folder);

/// Deletes the temporary files (FILE.tmp.<pid>) that a process left when it was killed while it wrote. Only
/// the holder of the lock may call it.
void remove_unfinished(const std::filesystem::path& folder);

}  // namespace millrace
