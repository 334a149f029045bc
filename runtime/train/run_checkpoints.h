// Saves and loads the state of a run: checkpoints, initial weights, final weights.
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

  /// Loads the checkpoint or weights that TrainOptions::init_from and resume name. Throws CheckpointError,
  /// ConfigError.
  void load();
  /// Returns the number of weight versions before the current one that load() found.
  std::int64_t older_versions() const { return older_versions_; }

  /// Saves the completed steps, while the ranks are idle. A failure is a warning: training continues, and the
  /// final report includes it. If TrainOptions::checkpoint_required is set, it throws CheckpointError
  /// instead. Throws NumericError if a single job has a value that is not finite, and writes nothing.
  /// With TrainOptions::background_saves it copies the state and returns, after the previous save has ended.
  /// Failures are then reported by the next call of settle(), which every save starts with.
  void save();
  /// Saves the completed steps as the best checkpoint, replacing the previous one. Otherwise like save().
  void save_best();
  /// Waits for the save in progress, if there is one, and reports it.
  void settle();
  /// Writes TrainOptions::save_weights, one file per job.
  void save_final_weights();
  /// If the newest checkpoint could not be saved, adds it to the report.
  void finish();

  /// Writes this rank's part of the state after its last update (TrainOptions::rescues), if a run can resume
  /// from it. Not collective: a peer is lost. A step must be in progress. Throws CheckpointError.
  void rescue();

 private:
  void resume();
  bool can_rescue() const;
  CheckpointInfo info_of(std::int64_t step) const;
  /// A checkpoint that is being written.
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
  std::vector<char> reads_own_;                          ///< by array: each of its jobs has its own batches
  std::vector<std::shared_ptr<KernelChoices>> choices_;  ///< by array; arrays of equal size share theirs
  std::int64_t older_versions_ = 0;
  std::int64_t unsaved_step_ = -1;            ///< step of the last save, if it failed
  std::vector<StageTensors> writing_;         ///< tensors that are being written
  std::map<std::string, at::Tensor> copies_;  ///< by name, for background saves; reused by the next one
  std::optional<Underway> underway_;
  std::unique_ptr<BackgroundSaver> saver_;  ///< null: saves are not in the background. Destroyed first
};

}  // namespace millrace
