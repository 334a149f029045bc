// The output folder of a run: its owner, its initial content, and the records of a failure.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/run_folder.h"
#include "runtime/counters/counter_sampler.h"
#include "runtime/train/training.h"

namespace millrace {

/// Holds the output folder for one run, with its lock. Not thread-safe.
class RunOutputs {
 public:
  /// `training` must outlive the object.
  explicit RunOutputs(Training& training) : t_(training) {}

  /// Creates or rejects every output, before the first step. All ranks must share the folder. Collective.
  /// Throws ConfigError.
  void claim();
  /// Resumes from `checkpoint`: in its own folder the run keeps its id, elsewhere it gets a new one.
  /// Collective.
  void resume_from(const CheckpointInfo& checkpoint, const std::filesystem::path& folder);
  /// Takes the folder for this run, and opens the logs. Collective. Throws ConfigError.
  void open();
  /// Adds the number of lost step-log lines to the report. Collective.
  void finish();

  /// Records, for later readers of the folder, that this rank failed. A stop is not a failure.
  void note_failure(ExitCode code, const std::string& error, const std::string& hint) const;
  /// Logs the last message of a failed rank: which rank failed before it, and where to resume. With a
  /// launcher, the launcher reports both for all ranks.
  void log_end() const;

  const std::string& run() const { return run_; }        ///< as in CheckpointInfo
  const std::string& parent() const { return parent_; }  ///< as in CheckpointInfo
  /// the run is in the folder of the run that it resumes
  bool continues() const { return continues_; }
  std::filesystem::path checkpoints() const;
  /// Returns the folder of the best checkpoint; if hosts have their own folders, it is in checkpoints().
  std::filesystem::path best() const;

 private:
  void require_shared(const std::filesystem::path& folder) const;
  void take_folder() const;
  void open_scalars(std::vector<std::unique_ptr<ScalarSink>>& sinks);
  /// Returns the offset from this rank's times to those of rank 0.
  std::int64_t open_logs(std::int64_t clock_ns, std::int64_t unix_ns);
  void tie_clocks(StepLogHeader& header) const;

  Training& t_;
  RunLock lock_;                              ///< held by rank 0
  std::unique_ptr<CounterSampler> counters_;  ///< null: not requested
  std::string run_, parent_;
  bool continues_ = false;
};

}  // namespace millrace
