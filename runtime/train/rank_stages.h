// The stages that one rank holds: one, or several in interleaved and V schedules; of each array that shares
// the pipeline.
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
  int first_job = 0;                     ///< of the array, among all jobs of the run
  int jobs = 1;                          ///< of the array
  bool named = false;                    ///< the run has several jobs, and names them
  std::vector<std::string> unreached{};  ///< NamedLayer's, of all its layers
  int replica = 0;                       ///< this rank's place among the stage's
  int replicas = 1;                      ///< ranks of the stage
  double rate = 1;                       ///< times the run's learning rate
  std::unique_ptr<ParameterStore> store;
  /// Of the layers [first, end) of the stage, if it is not of all: what a turn trains.
  struct Rule {
    int job = 0;  ///< of the array
    int turn = 0;
    std::size_t first = 0, end = 0;
    std::optional<FlatRange> part{};  ///< where they are in the job's flat tensors
    std::unique_ptr<UpdateRule> rule;
  };
  std::vector<Rule> rules;              ///< of a turn those of all jobs, then those of the next
  std::shared_ptr<Communicator> group;  ///< of the replicas, the same for all arrays; null if alone
  /// One for each turn, and one for the whole model, which evaluates; that alone, if there are no turns.
  std::vector<std::unique_ptr<StageExecutor>> executors;
  StageExecutor* executor = nullptr;  ///< whose turn it is

  bool in_turn() const { return executor != executors.back().get(); }
  /// How often the stage reads a microbatch's batch: in training in several turns.
  int readings() const;
  /// What a rule updates, with its names in the run's checkpoints.
  ParameterStore store_of(const Rule& rule) const;
  /// A job's part of the store, with its names in the run's checkpoints. `job` counts in the array.
  ParameterStore of_job(int job) const { return named ? store->job(job, first_job + job) : store->job(job); }
  bool has_job(int job) const { return job >= first_job && job < first_job + jobs; }  ///< of all jobs
};

struct RankStagesOptions {
  ExecutorOptions executor;        ///< but the seeds and clip values, which are the jobs'
  std::vector<JobOptions> jobs{};  ///< of all arrays in turn; at least one
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
  /// `layouts`: of each array. Collective over the replicas of each stage. `world` and `layouts` outlive it.
  /// Throws ConfigError if the plan has no place for this rank.
  RankStages(Communicator& world, Device& device, const std::vector<StageLayout>& layouts, const Plan& plan,
             const RankStagesOptions& options);

  /// By array, ascending by stage; at least one.
  const std::vector<HeldStage>& held() const { return held_; }
  int num_arrays() const { return static_cast<int>(arrays_.size()); }
  StageExecutor& executor(StageId stage, int array = 0) const;
  StageExecutor* last(int array = 0) const;  ///< of the model's last stage, if this rank holds it
  /// Of the batch, by index: 1 where a stage of this rank reads it.
  std::vector<char> fields(int array = 0) const;
  bool owns_loss() const;  ///< the one rank that speaks for the job

  /// A step begins, or an asynchronous run: its microbatch 0 is at `first_position`. `array`: only that one
  /// begins; nullopt: all.
  void begin(std::int64_t first_position, std::optional<int> array = {});
  /// The microbatches of `array` that follow are an evaluation's.
  void begin_evaluation(int array, const RunContext& context);
  /// Rates of the updates that follow, by job, of all arrays.
  void set_learning_rate(const std::vector<double>& lr) { lr_ = lr; }
  void set_begins(const std::vector<std::int64_t>& positions) { begins_ = positions; }  ///< RunContext's
  void set_extents(const ExtentOf& extent_of, int array);  ///< RunContext's, in training
  void set_ended(const std::vector<char>& ended);          ///< StageExecutor's, of all arrays
  void pause(std::int64_t cut);                            ///< StageExecutor::pause
  void go_on();
  void set_training(bool training);
  /// What follows is turn `turn` of a step; nullopt: the whole model's, for evaluation.
  void set_turn(std::optional<std::size_t> turn);
  /// Of the last stage, which is here: since the last time; in a turn those of all turns.
  LossSums take_losses(int array);
  /// Before the Update of `stage`: what stages agree on, and gradients of tied parameters. Waits for other
  /// ranks. Returns what the update of each of the array's jobs is told.
  std::vector<UpdateScalars> before_update(StageId stage, int array = 0);
  void update(StageId stage, const std::vector<UpdateScalars>& scalars, int array = 0);
  /// Any action but Update. Its microbatch counts in its array.
  void execute(const Action& action, bool last_gradient, int array = 0);
  void finish_sends();

  /// All Updates of a step must follow all its Reduces: gradients of several stages meet before.
  bool agrees_before_updates() const { return arrays_.front().agreement != nullptr; }
  /// Of the newest update's gradient before it was clipped; negative: it is not measured. Of ClipScope::Stage
  /// that of this rank's first stage. By job.
  const std::vector<double>& gradient_norms() const { return gradient_norms_; }
  bool scales_loss() const { return loss_scalers_.front().active(); }
  /// By job, the same on all ranks. One that has ended stays as it is.
  std::vector<LossScaler>& loss_scalers() { return loss_scalers_; }
  const std::vector<LossScaler>& loss_scalers() const { return loss_scalers_; }
  /// Of the newest update, by job: what the loss was multiplied by, and whether it changed nothing.
  const std::vector<double>& last_loss_scales() const { return last_loss_scales_; }
  const std::vector<char>& skipped_last() const { return skipped_last_; }

  int peak_stash() const { return peak_stash_; }  ///< microbatches of all stages together
  int peak_versions() const;                      ///< of the stage with the most

 private:
  /// What the stages of one array share.
  struct OfArray {
    std::size_t first_job = 0, jobs = 1;
    std::vector<int> held_at;  ///< by stage: index into held_, or -1
    std::size_t num_fields = 0;
    ExtentOf extent_of{};
    std::unique_ptr<GradientAgreement> agreement;  ///< null: stages update by themselves
    VersionId agreed{-1};                          ///< before the update of this version
    std::vector<UpdateScalars> scalars{};          ///< by job, but the rates: what was agreed for it
  };
  const HeldStage& at(StageId stage, int array) const;
  void agree(OfArray& array);
  void look_for_zero_gradients(const HeldStage& held);
  void clip_stage(const HeldStage& held, std::vector<UpdateScalars>& scalars);
  std::vector<HeldStage*> of(const OfArray& array);
  /// Of the array's jobs, in place among all.
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
    bool exact = false;  ///< clip_factor
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
