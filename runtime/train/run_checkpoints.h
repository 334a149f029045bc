// Saves and loads what a run begins with and leaves: checkpoints, first weights, final weights.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/checkpoint/background_saver.h"
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
  /// tells. Throws CheckpointError instead if TrainOptions::checkpoint_required is set. Throws NumericError
  /// where a single job has a value that is not finite: nothing that holds one is written.
  /// With TrainOptions::background_saves it copies the state and returns, after the save before has ended.
  /// Failures then show at the next call of settle(), which every save begins with.
  void save();
  /// Saves the steps done as the best, in place of the best before. All else is as of save().
  void save_best();
  /// Waits for the save that is under way, if there is one, and reports it.
  void settle();
  /// Writes TrainOptions::save_weights, a file for each job.
  void save_final_weights();
  /// Adds the checkpoint that could not be saved, if the newest could not, to the report.
  void finish();

  /// Writes this rank's part of the state after its last update (TrainOptions::rescues), where others can go
  /// on from it. Not collective: a peer is lost. A step must have been under way. Throws CheckpointError.
  void rescue();

 private:
  void resume();
  bool can_rescue() const;
  CheckpointInfo info_of(std::int64_t step) const;
  /// Of a checkpoint that is being written.
  struct Underway {
    std::string name;  ///< for messages: "checkpoint step=8"
    std::int64_t step = 0;
    bool is_best = false;
  };
  void begin(Underway what);
  BackgroundSaver::Save writes(const std::string& name, const std::filesystem::path& folder,
                               const Retention& keep) const;
  void end(const Underway& what, const std::optional<RankProblem>& problem);
  std::string failure_of(const std::string& name, const RankProblem& problem) const;
  void take_initial_weights();
  void check_model(const Checkpoint& found) const;
  void check_settings(const Checkpoint& found) const;
  void check_steps(const std::string& checkpoint) const;
  void load_rules(const Checkpoint& checkpoint, const std::vector<JobProgress>& progress);
  std::vector<JobProgress> progress() const;
  std::vector<CarriedRows> followed() const;
  std::vector<StageTensors> mine(const std::function<NamedTensors(const HeldStage&)>& tensors) const;
  std::vector<StageTensors> state() const;
  bool changes_at_updates() const;
  std::function<void()> snapshot();
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
  std::int64_t unsaved_step_ = -1;            ///< of the last save, if it failed
  std::vector<StageTensors> writing_;         ///< what is being written
  std::map<std::string, at::Tensor> copies_;  ///< by name, of background saves; used again by the next one
  std::optional<Underway> underway_;
  std::unique_ptr<BackgroundSaver> saver_;  ///< null: saves are not in the background. Destroyed first
};

}  // namespace millrace
