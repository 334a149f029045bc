// Saves and loads what a run begins with and leaves: checkpoints, first weights, final weights.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/checkpoint/carried.h"
#include "runtime/train/evaluations.h"
#include "runtime/train/run_outputs.h"
#include "runtime/train/run_settings.h"

namespace millrace {

/// Reads and writes the weights, rule state and progress of a run. Not thread-safe. All functions are
/// collective.
class RunCheckpoints {
 public:
  /// All must outlive the object.
  RunCheckpoints(Training& training, RunOutputs& outputs, Evaluations& evaluations,
                 const std::vector<TrainedArray>& arrays, Settings settings);

  /// Loads what TrainOptions::init_from and resume name. Throws CheckpointError, ConfigError.
  void load();
  /// Returns the number of weight versions before the current one that load() has found.
  std::int64_t older_versions() const { return older_versions_; }

  /// Saves the steps done, while the ranks rest. A failure is a warning: training goes on, and the run's end
  /// tells. Throws NumericError where a single job has a value that is not finite: nothing that holds one is
  /// written.
  void save();
  /// Saves the steps done as the best, in place of the best before, while the ranks rest. Failures are as of
  /// save().
  void save_best();
  /// Writes TrainOptions::save_weights, a file for each job.
  void save_final_weights();
  /// Adds the checkpoint that could not be saved, if the newest could not, to the report.
  void finish();

 private:
  void resume();
  std::optional<RankProblem> write(const std::filesystem::path& folder, int keep) const;
  void take_initial_weights();
  void check_model(const Checkpoint& found) const;
  void check_settings(const Checkpoint& found) const;
  void check_steps(const std::string& checkpoint) const;
  void load_rules(const Checkpoint& checkpoint, const std::vector<JobProgress>& progress);
  std::vector<JobProgress> progress() const;
  std::vector<CarriedRows> followed() const;
  std::vector<StageTensors> mine(const std::function<NamedTensors(const HeldStage&)>& tensors) const;
  std::vector<StageTensors> state() const;
  void add_choices(NamedTensors& state, const HeldStage& held) const;
  std::optional<RankProblem> non_finite(const std::vector<StageTensors>& tensors) const;
  void require_finite(const std::vector<StageTensors>& tensors) const;

  Training& t_;
  RunOutputs& outputs_;
  Evaluations& evaluations_;
  Settings settings_;
  std::vector<char> reads_own_;  ///< by array: each of its jobs has batches of its own
  std::vector<std::shared_ptr<KernelChoices>> choices_;  ///< by array; arrays of one size share theirs
  std::int64_t older_versions_ = 0;
  std::int64_t unsaved_step_ = -1;  ///< of the last save, if it failed
};

}  // namespace millrace
