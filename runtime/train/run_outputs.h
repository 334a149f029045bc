// The output folder of a run: whose it is, what is in it at the start, and what a failure leaves there.
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

  /// Makes or refuses everything that will be written, before the first step. The folder must be one that all
  /// ranks share. Collective. Throws ConfigError.
  void claim();
  /// The run goes on from `checkpoint`: in its own folder it keeps its id, elsewhere a new one begins.
  /// Collective.
  void resume_from(const CheckpointInfo& checkpoint, const std::filesystem::path& folder);
  /// Makes the folder this run's, and opens the logs. Collective. Throws ConfigError.
  void open();
  /// Adds to the report what could not be written to the steps' logs. Collective.
  void finish();

  /// Notes for who reads the folder later that this rank failed. A stop is no failure.
  void note_failure(ExitCode code, const std::string& error, const std::string& hint) const;
  /// Logs the last words of a failed rank: which rank failed before it, and where to go on. A launcher says
  /// both for all ranks.
  void log_end() const;

  const std::string& run() const { return run_; }        ///< CheckpointInfo's
  const std::string& parent() const { return parent_; }  ///< CheckpointInfo's
  bool continues() const { return continues_; }          ///< in the folder of the run that it resumes
  std::filesystem::path checkpoints() const;
  /// Returns the folder of the best checkpoint; hosts with folders of their own have it in checkpoints().
  std::filesystem::path best() const;

 private:
  void require_shared(const std::filesystem::path& folder) const;
  void take_folder() const;
  void open_scalars(std::vector<std::unique_ptr<ScalarSink>>& sinks);
  /// Returns what to add to this rank's times to get those of rank 0.
  std::int64_t open_logs(std::int64_t clock_ns, std::int64_t unix_ns);
  void tie_clocks(StepLogHeader& header) const;

  Training& t_;
  RunLock lock_;                              ///< of rank 0
  std::unique_ptr<CounterSampler> counters_;  ///< null: none are asked for
  std::string run_, parent_;
  bool continues_ = false;
};

}  // namespace millrace
