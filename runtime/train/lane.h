// One job array on one rank: the array's stages on this rank, and their shared state.
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

/// One stage of an array on this rank, with all its objects.
struct HeldStage {
  StageId stage;
  int array = 0;
  int first_job = 0;                     ///< first job of the array, among all jobs of the run
  int jobs = 1;                          ///< jobs in the array
  int all_jobs = 1;                      ///< jobs in the run
  std::vector<std::string> unreached{};  ///< NamedLayer::unreached of all its layers
  int replica = 0;                       ///< this rank's index among the stage's ranks
  int replicas = 1;                      ///< ranks of the stage
  double rate = 1;                       ///< factor on the run's learning rate
  std::unique_ptr<ParameterStore> store;
  /// The update rule of one job. In a model with turns it updates the layers [first, end) of the stage, which
  /// one turn trains; otherwise all layers.
  struct Rule {
    int job = 0;  ///< index in the array
    int turn = 0;
    std::size_t first = 0, end = 0;
    std::optional<FlatRange> part{};  ///< the range of those layers in the job's flat tensors; unset: all
    std::unique_ptr<UpdateRule> rule;
  };
  std::vector<Rule> rules;              ///< by turn, then by job
  std::shared_ptr<Communicator> group;  ///< joins the stage's replicas, for all arrays; null without replicas
  /// An executor for each turn, then one for the whole model. The last one evaluates; it also trains if the
  /// model has no turns.
  std::vector<std::unique_ptr<StageExecutor>> executors;
  StageExecutor* executor = nullptr;  ///< the current one of `executors` (Lane::set_turn)

  bool named() const { return all_jobs > 1; }  ///< parameters have their job's name as a prefix
  bool in_turn() const { return executor != executors.back().get(); }
  /// Returns how often the stage reads a microbatch's batch. Training in turns reads it once for each turn
  /// that needs it.
  int readings() const;
  /// Returns the parameters that a rule updates, under their names in the run's checkpoints.
  ParameterStore store_of(const Rule& rule) const;
  /// Returns a job's part of the store, under its names in the run's checkpoints. `job` is its index in the
  /// array.
  ParameterStore of_job(int job) const {
    return named() ? store->job(job, first_job + job) : store->job(job);
  }
  /// Returns which tensors the forwards of the stage write.
  const ForwardWrites& writes() const { return executors.back()->program().writes; }
  /// `job`: among all jobs
  bool has_job(int job) const { return job >= first_job && job < first_job + jobs; }
};

struct RankStagesOptions {
  ExecutorOptions executor;        ///< without the seeds and clip values, which are per job
  std::vector<JobOptions> jobs{};  ///< of all arrays, in order; at least one
  /// The type of weights and gradients. Layers compute in it too, unless the layout casts.
  at::ScalarType dtype = at::kFloat;
  Precision precision = Precision::Float32;  ///< the precision for which the layouts were made
  LossScaleOptions loss_scale;
  NonfiniteOptions nonfinite{};
  bool check_writes = false;      ///< WriteCheck
  bool average_replicas = false;  ///< gradients are means over replicas instead of sums (asynchronous)
  bool rate_by_replicas = false;  ///< a stage's learning rate times its replicas / those of stage 0
};

/// The objects that a lane uses. All references must outlive it.
struct LaneParts {
  Communicator& world;
  Device& device;
  const StageLayout& layout;
  const Plan& plan;
  const RankStagesOptions& options;  ///< read by the constructor only
  UpdateDecision& decision;
  const std::vector<std::shared_ptr<Communicator>>& groups;  ///< by stage; read by the constructor only
  MessageNumbers numbers;                                    ///< without the model's own number
  int array = 0;
  std::size_t first_job = 0;  ///< among all jobs of the run
};

/// Passes each action to the executor of its stage, in the current turn. Not thread-safe.
class Lane {
 public:
  /// Collective over the replicas of each stage, and over all ranks if they compute the model's norm
  /// together.
  explicit Lane(const LaneParts& parts);

  std::vector<HeldStage>& held() { return held_; }  ///< ascending
  const std::vector<HeldStage>& held() const { return held_; }
  StageExecutor& executor(StageId stage) const { return *at(stage).executor; }
  StageExecutor* last() const;  ///< the executor of the model's last stage; null on other ranks
  /// Returns 1 for each field of a batch that a stage of this rank reads, else 0; by index of the field.
  std::vector<char> fields() const;

  /// Sets the training context: the extents, and for each job of the run the position at which its own run
  /// starts.
  void set_extents(ExtentOf extent_of) { extent_of_ = std::move(extent_of); }
  void set_begins(const std::vector<std::int64_t>& positions);
  /// Starts a step, or an asynchronous run: its microbatch 0 is at `first_position`.
  void begin(std::int64_t first_position);
  /// Starts an evaluation: the following microbatches are part of it.
  void begin_evaluation(const RunContext& context);
  /// Sets the turn of a step for the following actions; nullopt: the whole model (evaluation).
  void set_turn(std::optional<std::size_t> turn);
  /// Passes on to the executors which jobs have ended, from UpdateDecision::jobs.
  void keep_ended_jobs();

  /// Prepares the Update of `stage`: stages exchange gradients of tied parameters and compute the norm. Waits
  /// for other ranks. Returns the scalars of the update, by job of the array.
  std::vector<UpdateScalars> before_update(StageId stage);
  void update(StageId stage, const std::vector<UpdateScalars>& scalars);
  void spoil_gradient(StageId stage);  ///< writes a NaN into it, for a test (failpoint.h)
  /// Returns the sums that the last stage's heads have added since the previous call, and resets them. Only
  /// the rank with the last stage may call it. A model trained in turns has the sums of all turns.
  LossSums take_losses();

 private:
  /// Returns by job whether this rank has found a loss or an activation that is not finite.
  std::vector<char> troubled();
  /// Returns the step's first location of such a number, the same on all ranks. Collective over all ranks.
  std::string first_nonfinite();
  void require_finite_gradient(const HeldStage& held);
  const HeldStage& at(StageId stage) const;
  void hold(const LaneParts& parts, const ExecutorOptions& executor, StageId stage);

  Communicator& world_;
  const StageLayout& layout_;
  UpdateDecision& decision_;
  bool checks_own_gradients_ = false;  ///< per stage, because the stages do not decide together
  std::size_t first_job_;
  std::vector<HeldStage> held_;
  ExtentOf extent_of_{};
  std::vector<std::int64_t> begins_;              ///< by job of the array
  std::unique_ptr<GradientAgreement> agreement_;  ///< null: stages update by themselves
  VersionId agreed_{-1};                          ///< the version before whose update the norm was exchanged
  std::vector<UpdateScalars> scalars_;            ///< by job, without the rates: the exchanged result
  std::set<const StageExecutor*> before_first_update_;
};

}  // namespace millrace
