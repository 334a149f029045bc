// The stages that one rank holds, for each array that shares the pipeline. A rank holds one stage, or several
// in interleaved and V schedules.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"
#include "runtime/stage/gradient_agreement.h"
#include "runtime/stage/stage_executor.h"
#include "runtime/train/train_options.h"

namespace millrace {

/// One stage of one array on this rank, with everything that belongs to it.
struct HeldStage {
  StageId stage;
  int array = 0;
  int first_job = 0;                     ///< number of the array's first job among all jobs of the run
  int jobs = 1;                          ///< jobs in the array
  bool named = false;                    ///< the run has several jobs, and parameter names begin with the job
  std::vector<std::string> unreached{};  ///< NamedLayer::unreached of all layers of the stage
  int replica = 0;                       ///< this rank's index among the stage's replicas
  int replicas = 1;                      ///< ranks of the stage
  double rate = 1;                       ///< factor on the run's learning rate
  std::unique_ptr<ParameterStore> store;
  /// The update rule of one job. In a model with turns it updates the layers [first, end) of the stage, which
  /// one turn trains; else all layers.
  struct Rule {
    int job = 0;  ///< of the array
    int turn = 0;
    std::size_t first = 0, end = 0;
    std::optional<FlatRange> part{};  ///< the place of those layers in the job's flat tensors; unset: all
    std::unique_ptr<UpdateRule> rule;
  };
  std::vector<Rule> rules;              ///< turn by turn, and job by job in a turn
  std::shared_ptr<Communicator> group;  ///< joins the stage's replicas, for all arrays; null without replicas
  /// An executor for each turn, then one for the whole model. The last one evaluates; it also trains if the
  /// model has no turns.
  std::vector<std::unique_ptr<StageExecutor>> executors;
  StageExecutor* executor = nullptr;  ///< the one of `executors` that runs now (set_turn)

  bool in_turn() const { return executor != executors.back().get(); }
  /// Returns the number of times that the stage reads a microbatch's batch. Training in turns reads it once
  /// for each turn that needs it.
  int readings() const;
  /// Returns the parameters that a rule updates, under their names in the run's checkpoints.
  ParameterStore store_of(const Rule& rule) const;
  /// Returns a job's part of the store, under its names in the run's checkpoints. `job` counts in the array.
  ParameterStore of_job(int job) const { return named ? store->job(job, first_job + job) : store->job(job); }
  bool has_job(int job) const { return job >= first_job && job < first_job + jobs; }  ///< of all jobs
};

struct RankStagesOptions {
  ExecutorOptions executor;        ///< without seeds and clip values, which come from `jobs`
  std::vector<JobOptions> jobs{};  ///< the jobs of all arrays, array by array; at least one
  /// The type of weights and gradients. Layers compute in it too, unless the layout casts.
  at::ScalarType dtype = at::kFloat;
  Precision precision = Precision::Float32;  ///< the precision that the layouts were made for
  LossScaleOptions loss_scale;
  bool average_replicas = false;  ///< gradients are means over replicas instead of sums (asynchronous)
  /// a stage's learning rate is multiplied with its replicas / those of stage 0
  bool rate_by_replicas = false;
};

/// The stages of one rank. It passes each action on to the executor of its stage. Not thread-safe.
class RankStages {
 public:
  /// `layouts` has one layout for each array. The call is collective over the replicas of each stage. `world`
  /// and `layouts` must outlive the object.
  /// Throws ConfigError if the plan has no place for this rank.
  RankStages(Communicator& world, Device& device, const std::vector<StageLayout>& layouts, const Plan& plan,
             const RankStagesOptions& options);

  /// The stages of this rank, array by array and ascending in an array; at least one.
  const std::vector<HeldStage>& held() const { return held_; }
  int num_arrays() const { return static_cast<int>(arrays_.size()); }
  StageExecutor& executor(StageId stage, int array = 0) const;
  StageExecutor* last(int array = 0) const;  ///< the executor of the model's last stage; null on other ranks
  /// Returns 1 for each field of a batch that a stage of this rank reads, else 0; by index of the field.
  std::vector<char> fields(int array = 0) const;
  bool owns_loss() const;  ///< tells whether this rank reports the run's loss; one rank does

  /// Begins a step or an asynchronous run, whose microbatch 0 is at `first_position`. `array` names the one
  /// array that begins; nullopt: all do.
  void begin(std::int64_t first_position, std::optional<int> array = {});
  /// Begins an evaluation: the microbatches of `array` that follow belong to it.
  void begin_evaluation(int array, const RunContext& context);
  /// Sets the learning rates of the updates that follow, by job of all arrays.
  void set_learning_rate(const std::vector<double>& lr) { lr_ = lr; }
  /// sets RunContext::begins, by job of all arrays
  void set_begins(const std::vector<std::int64_t>& positions) { begins_ = positions; }
  void set_extents(const ExtentOf& extent_of, int array);  ///< sets RunContext::extent_of of training
  void set_ended(const std::vector<char>& ended);          ///< StageExecutor::set_ended, by job of all arrays
  void pause(std::int64_t cut);                            ///< StageExecutor::pause
  void go_on();                                            ///< StageExecutor::go_on
  void set_training(bool training);                        ///< StageExecutor::set_training
  /// Lets the actions that follow belong to turn `turn` of a step. nullopt: to the whole model (evaluation).
  void set_turn(std::optional<std::size_t> turn);
  /// Returns the sums that the last stage's heads have added since the previous call, and starts new ones.
  /// Only the rank that has the last stage may call it. A model trained in turns has the sums of all turns.
  LossSums take_losses(int array);
  /// Prepares the Update of `stage`: stages exchange gradients of tied parameters and agree on the norm.
  /// Waits for other ranks. Returns the scalars of the update, by job of the array.
  std::vector<UpdateScalars> before_update(StageId stage, int array = 0);
  void update(StageId stage, const std::vector<UpdateScalars>& scalars, int array = 0);
  /// Runs any action but Update. The action's microbatch counts in its array.
  void execute(const Action& action, bool last_gradient, int array = 0);
  void finish_sends();  ///< StageExecutor::finish_sends

  /// Tells whether all Updates of a step must follow all its Reduces, because the stages agree on a norm in
  /// between.
  bool agrees_before_updates() const { return arrays_.front().agreement != nullptr; }
  /// The 2-norms of the newest update's gradients before clipping, by job; negative: not measured. With
  /// ClipScope::Stage they are those of this rank's first stage.
  const std::vector<double>& gradient_norms() const { return gradient_norms_; }
  bool scales_loss() const { return loss_scalers_.front().active(); }
  /// The loss scalers by job, the same on all ranks. The scaler of a job that has ended stays as it is.
  std::vector<LossScaler>& loss_scalers() { return loss_scalers_; }
  const std::vector<LossScaler>& loss_scalers() const { return loss_scalers_; }
  /// The factors on the losses in the newest update, and whether that update was skipped; by job.
  const std::vector<double>& last_loss_scales() const { return last_loss_scales_; }
  const std::vector<char>& skipped_last() const { return skipped_last_; }

  int peak_stash() const { return peak_stash_; }  ///< most microbatches in the stashes of all stages together
  int peak_versions() const;                      ///< most weight versions of any stage

 private:
  /// The state that the stages of one array share.
  struct OfArray {
    std::size_t first_job = 0, jobs = 1;
    std::vector<int> held_at;  ///< by stage: index into held_, or -1
    std::size_t num_fields = 0;
    ExtentOf extent_of{};
    std::unique_ptr<GradientAgreement> agreement;  ///< null: stages update by themselves
    VersionId agreed{-1};                          ///< the version that `scalars` were agreed for
    std::vector<UpdateScalars> scalars{};          ///< by job, without rates: the agreement for `agreed`
  };
  const HeldStage& at(StageId stage, int array) const;
  void agree(OfArray& array);
  void look_for_zero_gradients(const HeldStage& held);
  void clip_stage(const HeldStage& held, std::vector<UpdateScalars>& scalars);
  std::vector<HeldStage*> of(const OfArray& array);
  /// Stores the norms of the array's jobs in gradient_norms_.
  void set_norms(const OfArray& array, const std::vector<double>& norms);
  void require_finite(const std::vector<double>& norms, const std::string& whose) const;
  void require_end_of_skips() const;
  bool clips() const;
  double clip_factor_of(std::size_t job, double norm) const;

  std::vector<OfArray> arrays_;
  std::vector<HeldStage> held_;
  std::set<const StageExecutor*> before_first_update_;
  struct Clip {
    double norm = 0;     ///< 0: none
    bool exact = false;  ///< the `exact` of clip_factor()
  };
  std::vector<Clip> clips_;  ///< by job
  ClipScope clip_scope_ = ClipScope::Model;
  bool stops_on_nonfinite_ = false;
  std::vector<double> gradient_norms_;    ///< by job
  std::vector<LossScaler> loss_scalers_;  ///< by job, as the following
  std::vector<double> last_loss_scales_;
  std::vector<char> skipped_last_, ended_;
  std::vector<double> lr_;
  std::vector<std::int64_t> begins_;
  int peak_stash_ = 0;
};

}  // namespace millrace
