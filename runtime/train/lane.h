// One array of jobs on one rank: the stages that the rank holds of it, and what they share.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"
#include "runtime/stage/gradient_agreement.h"
#include "runtime/stage/stage_executor.h"
#include "runtime/train/update_decision.h"

namespace millrace {

/// One stage of an array on this rank, with everything that belongs to it.
struct HeldStage {
  StageId stage;
  int array = 0;
  int first_job = 0;                     ///< of the array, among all jobs of the run
  int jobs = 1;                          ///< of the array
  int all_jobs = 1;                      ///< of the run
  std::vector<std::string> unreached{};  ///< NamedLayer's, of all its layers
  int replica = 0;                       ///< this rank's place among the stage's
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
  StageExecutor* executor = nullptr;  ///< the one of `executors` that runs now (Lane::set_turn)

  bool named() const { return all_jobs > 1; }  ///< parameters have their job's name
  bool in_turn() const { return executor != executors.back().get(); }
  /// Returns the number of times that the stage reads a microbatch's batch. Training in turns reads it once
  /// for each turn that needs it.
  int readings() const;
  /// Returns the parameters that a rule updates, under their names in the run's checkpoints.
  ParameterStore store_of(const Rule& rule) const;
  /// Returns a job's part of the store, under its names in the run's checkpoints. `job` counts in the array.
  ParameterStore of_job(int job) const {
    return named() ? store->job(job, first_job + job) : store->job(job);
  }
  /// Returns what the forwards of the stage write.
  const ForwardWrites& writes() const { return executors.back()->program().writes; }
  bool has_job(int job) const { return job >= first_job && job < first_job + jobs; }  ///< of all jobs
};

struct RankStagesOptions {
  ExecutorOptions executor;        ///< but the seeds and clip values, which are the jobs'
  std::vector<JobOptions> jobs{};  ///< of all arrays in turn; at least one
  /// The type of weights and gradients. Layers compute in it too, unless the layout casts.
  at::ScalarType dtype = at::kFloat;
  Precision precision = Precision::Float32;  ///< the precision that the layouts were made for
  LossScaleOptions loss_scale;
  NonfiniteOptions nonfinite{};
  bool check_writes = false;      ///< WriteCheck
  bool average_replicas = false;  ///< gradients are means over replicas instead of sums (asynchronous)
  bool rate_by_replicas = false;  ///< a stage's learning rate times its replicas / those of stage 0
};

/// The parts that a lane is made of. All references outlive it.
struct LaneParts {
  Communicator& world;
  Device& device;
  const StageLayout& layout;
  const Plan& plan;
  const RankStagesOptions& options;  ///< read by the constructor only
  UpdateDecision& decision;
  const std::vector<std::shared_ptr<Communicator>>& groups;  ///< by stage; read by the constructor only
  MessageNumbers numbers;                                    ///< but the model's own number
  int array = 0;
  std::size_t first_job = 0;  ///< among all jobs of the run
};

/// Passes each action on to the executor of its stage, in the turn that runs now. Not thread-safe.
class Lane {
 public:
  /// Collective over the replicas of each stage, and over all ranks where the norm of the model is agreed on.
  explicit Lane(const LaneParts& parts);

  std::vector<HeldStage>& held() { return held_; }  ///< ascending
  const std::vector<HeldStage>& held() const { return held_; }
  StageExecutor& executor(StageId stage) const { return *at(stage).executor; }
  StageExecutor* last() const;  ///< the executor of the model's last stage; null on other ranks
  /// Returns 1 for each field of a batch that a stage of this rank reads, else 0; by index of the field.
  std::vector<char> fields() const;

  /// Says what training runs in: the extents, and by job of the run the positions where their own runs begin.
  void set_extents(ExtentOf extent_of) { extent_of_ = std::move(extent_of); }
  void set_begins(const std::vector<std::int64_t>& positions);
  /// A step begins, or an asynchronous run: its microbatch 0 is at `first_position`.
  void begin(std::int64_t first_position);
  /// The microbatches that follow are an evaluation's.
  void begin_evaluation(const RunContext& context);
  /// The actions that follow belong to turn `turn` of a step; nullopt: to the whole model (evaluation).
  void set_turn(std::optional<std::size_t> turn);
  /// Tells the executors which jobs have ended, by UpdateDecision::jobs.
  void keep_ended_jobs();

  /// Prepares the Update of `stage`: stages exchange gradients of tied parameters and agree on the norm.
  /// Waits for other ranks. Returns the scalars of the update, by job of the array.
  std::vector<UpdateScalars> before_update(StageId stage);
  void update(StageId stage, const std::vector<UpdateScalars>& scalars);
  void spoil_gradient(StageId stage);  ///< puts a NaN into it, for a test (failpoint.h)
  /// Returns the sums that the last stage's heads have added since the previous call, and starts new ones.
  /// Only the rank that has the last stage may call it. A model trained in turns has the sums of all turns.
  LossSums take_losses();

 private:
  /// Whether this rank has seen a loss or an activation that is not finite; by job.
  std::vector<char> troubled();
  /// Returns where the step first had such a number, on all ranks the same. Collective over all ranks.
  std::string first_nonfinite();
  void require_finite_gradient(const HeldStage& held);
  const HeldStage& at(StageId stage) const;
  void hold(const LaneParts& parts, const ExecutorOptions& executor, StageId stage);

  Communicator& world_;
  const StageLayout& layout_;
  UpdateDecision& decision_;
  bool checks_own_gradients_ = false;  ///< by stage, because the stages do not judge together
  std::size_t first_job_;
  std::vector<HeldStage> held_;
  ExtentOf extent_of_{};
  std::vector<std::int64_t> begins_;              ///< by job of the array
  std::unique_ptr<GradientAgreement> agreement_;  ///< null: stages update by themselves
  VersionId agreed_{-1};                          ///< before the update of this version
  std::vector<UpdateScalars> scalars_;            ///< by job, but the rates: what was agreed for it
  std::set<const StageExecutor*> before_first_update_;
};

}  // namespace millrace
