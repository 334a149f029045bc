// The stages that one rank holds: one, or several in interleaved and V schedules.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"
#include "runtime/stage/gradient_agreement.h"
#include "runtime/stage/stage_executor.h"
#include "runtime/train/train_options.h"

namespace millrace {

/// One stage on this rank, with everything that belongs to it.
struct HeldStage {
  StageId stage;
  int replica = 0;   ///< this rank's place among the stage's
  int replicas = 1;  ///< ranks of the stage
  double rate = 1;   ///< times the run's learning rate
  std::unique_ptr<ParameterStore> store;
  std::vector<std::unique_ptr<UpdateRule>> rules;  ///< by job
  std::unique_ptr<Communicator> group;             ///< of the replicas; null if this rank is alone
  std::unique_ptr<StageExecutor> executor;
};

struct RankStagesOptions {
  ExecutorOptions executor;
  RuleOptions rule;
  ClipOptions clip;
  std::vector<JobOptions> jobs{};  ///< of a job array, instead of the seed, the rule and the clipping above
  at::ScalarType dtype =
      at::kFloat;  ///< of weights and gradients; of what is computed too, unless the layout casts
  Precision precision = Precision::Float32;  ///< the layout's
  LossScaleOptions loss_scale;
  bool average_replicas = false;  ///< gradients are means over replicas instead of sums (asynchronous)
  bool rate_by_replicas = false;  ///< a stage's learning rate times its replicas / those of stage 0
};

/// Passes each action on to the executor of its stage. Not thread-safe.
class RankStages {
 public:
  /// Collective over the replicas of each stage. `world` and `layout` outlive it. Throws ConfigError if the
  /// plan has no place for this rank.
  RankStages(Communicator& world, Device& device, const StageLayout& layout, const Plan& plan,
             const RankStagesOptions& options);

  const std::vector<HeldStage>& held() const { return held_; }  ///< ascending by stage, at least one
  StageExecutor& executor(StageId stage) const;
  StageExecutor* last() const;       ///< of the model's last stage, if this rank holds it
  std::vector<char> fields() const;  ///< of the batch, by index: 1 where a stage of this rank reads it
  bool owns_loss() const;            ///< the one rank that speaks for the job

  void begin(std::int64_t first_position, const std::vector<double>& lr);  ///< by job
  void set_learning_rate(const std::vector<double>& lr);
  void pause(std::int64_t cut);  ///< StageExecutor::pause
  void go_on();
  void set_training(bool training);
  void set_extents(const ExtentOf& extent_of);
  void execute(const Action& action, bool last_gradient);
  void finish_sends();

  /// All Updates of a step must follow all its Reduces: gradients of several stages meet before.
  bool agrees_before_updates() const { return agreement_ != nullptr; }
  /// Of the newest update's gradient before it was clipped; negative: it is not measured. Of ClipScope::Stage
  /// that of this rank's first stage. By job.
  const std::vector<double>& gradient_norms() const { return gradient_norms_; }
  /// The same on all ranks.
  LossScaler& loss_scaler() { return loss_scaler_; }
  const LossScaler& loss_scaler() const { return loss_scaler_; }
  /// Of the newest update: what the loss was multiplied by, and whether it changed nothing.
  double last_loss_scale() const { return last_loss_scale_; }
  bool skipped_last() const { return skipped_last_; }

  int peak_stash() const { return peak_stash_; }  ///< microbatches of all stages together
  int peak_versions() const;                      ///< of the stage with the most

 private:
  const HeldStage& at(StageId stage) const;
  void before_update(StageId stage);
  void agree();
  void clip_stage(const HeldStage& held);
  void require_finite(const std::vector<double>& norms, const std::string& whose) const;
  void require_end_of_skips() const;
  bool clips() const;
  std::vector<double> clip_factors(const std::vector<double>& norms) const;

  std::vector<HeldStage> held_;
  std::vector<int> held_at_;  ///< by stage: index into held_, or -1
  std::size_t num_fields_ = 0;
  struct Clip {
    double norm = 0;     ///< 0: none
    bool exact = false;  ///< clip_factor
  };
  std::vector<Clip> clips_;  ///< by job
  ClipScope clip_scope_ = ClipScope::Model;
  bool stops_on_nonfinite_ = false;
  std::unique_ptr<GradientAgreement> agreement_;  ///< null: stages update by themselves
  VersionId agreed_{-1};                          ///< before the update of this version
  std::vector<double> gradient_norms_{-1};
  LossScaler loss_scaler_;
  double last_loss_scale_ = 1;
  bool skipped_last_ = false;
  int peak_stash_ = 0;
};

}  // namespace millrace
