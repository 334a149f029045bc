// A run's folder: its lock, and the files that an earlier run left in it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace millrace {

/// Returns this machine's host name; empty: unknown.
std::string host_name();

/// Returns 16 random hexadecimal digits from the kernel. They distinguish one run's files from another's.
std::string new_run_id();

/// The lock of a run's folder: FOLDER/run.lock, held with flock(2) while a run writes into FOLDER. The
/// launcher holds it, or rank 0 of a run without a launcher. The kernel releases the lock when its holder
/// ends for any reason, so a dead holder's file locks nothing. The file names the holder (run, pid, host).
/// Move-only.
class RunLock {
 public:
  RunLock() = default;  ///< holds nothing
  /// Takes the lock. Returns an error if another run, which the error names, holds it, or if the folder
  /// cannot be written. If a launcher holds the lock for `launched_run`, the result is valid and holds
  /// nothing; empty: there is no launcher. On a file system without locks the function only warns.
  static Result<RunLock> acquire(const std::filesystem::path& folder, const std::string& run,
                                 const std::string& launched_run = {});
  ~RunLock();
  RunLock(RunLock&&) noexcept;
  RunLock& operator=(RunLock&&) noexcept;

 private:
  explicit RunLock(int fd) : fd_(fd) {}
  int fd_ = -1;
};

/// Returns what another run in `folder` would overwrite: "checkpoints up to step-00000030, a summary". Empty
/// if nothing would be lost, for example because the earlier run never reached its first step.
std::string earlier_run(const std::filesystem::path& folder);

/// Returns the folders of the rounds in which the jobs of `folder` are trained (run_files::kRounds), first
/// round first.
std::vector<std::filesystem::path> rounds_in(const std::filesystem::path& folder);
/// Returns the folder into which ranks write now, or wrote last: the last round's, or `folder` without
/// rounds.
std::filesystem::path newest_round(const std::filesystem::path& folder);

/// Returns whether a run can resume in `folder`: it has a checkpoint, or a completed round.
bool can_go_on(const std::filesystem::path& folder);

/// Returns an error with a hint if earlier_run() finds anything.
Status check_unused(const std::filesystem::path& folder);

/// Deletes the files that a run writes (checkpoints, step logs, traces, status, summary, report) and nothing
/// else. plan.json, schedule.csv, job.yaml and logs/ are kept, because the new run may read them; it
/// overwrites them.
Status remove_earlier_run(const std::filesystem::path& folder);

/// The reason why a rank ended before the run did, for later readers of the folder.
struct RunFailure {
  int rank = 0;
  std::int64_t step = -1;  ///< completed steps; -1: unknown
  int exit_code = 0;       ///< 128+n: killed by signal n
  std::string error, hint{};
};
/// Writes the failure into the rank's file. A write error is ignored.
void write_failure(const std::filesystem::path& folder, const RunFailure& failure);
/// Returns the failure that caused the others: a rank that failed by itself precedes one that only lost its
/// peer. Among equals the earliest failure wins. Nothing: no rank has failed.
std::optional<RunFailure> failure_of(const std::filesystem::path& folder);
/// Deletes the failures of an earlier run, when a run takes the folder.
void remove_failures(const std::filesystem::path& folder);
/// Returns whether a run holds the lock now.
bool is_locked(const std::filesystem::path& folder);

/// The process that holds a run's folder, as recorded in the lock file.
struct LockHolder {
  std::string run, host;
  std::int64_t pid = 0;  ///< 0: not recorded
};
/// Returns the current holder of the lock; nothing if the lock is free.
std::optional<LockHolder> lock_holder(const std::filesystem::path& folder);

/// Deletes the temporary files (FILE.tmp.<pid>) that a process left when it was killed during a write. Only
/// the holder of the lock may call it.
void remove_unfinished(const std::filesystem::path& folder);

}  // namespace millrace
