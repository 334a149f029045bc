// Executes the actions of one rank's stage. It knows no schedule: one switch over ten ops.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/schedule/schedule.h"
#include "runtime/stage/averaged_weights.h"
#include "runtime/stage/finite_check.h"
#include "runtime/stage/gradient_reducer.h"
#include "runtime/stage/layer_runner.h"
#include "runtime/stage/layer_slots.h"
#include "runtime/stage/microbatch_versions.h"
#include "runtime/stage/run_context.h"
#include "runtime/stage/running_statistics.h"
#include "runtime/stage/stage_borders.h"
#include "runtime/stage/stage_heads.h"
#include "runtime/stage/stage_parts.h"

namespace millrace {

/// One stage on one rank, put together from its parts. Not thread-safe. Exceptions: PeerError
/// (communication), DataError, NumericError via the caller's checks.
class StageExecutor {
 public:
  StageExecutor(const ExecutorParts& parts, const ExecutorOptions& options);
  StageExecutor(const StageExecutor&) = delete;  // its parts refer to each other
  StageExecutor& operator=(const StageExecutor&) = delete;

  /// The microbatches that follow run in `context`.
  void begin(RunContext context);
  const StageProgram& program() const { return program_; }
  /// Gives the batch of a microbatch before its Forward, with the fields that this stage reads. Throws
  /// DataError where a value is outside its field's limit.
  void feed(MicrobatchId microbatch, const Batch& batch);
  /// Posts the receive of a coming Recv action, so that the data can travel during computation.
  void post_receive(const Action& action) { borders_.post_receive(action, context_); }
  /// Runs any action but Update. `last_gradient`: no further backward adds to the gradients before the next
  /// Update; buckets are reduced as they become ready.
  void execute(const Action& action, bool last_gradient = false);
  /// Waits for the sends in flight, and for tied weights that are on their way: before this rank rests
  /// (checkpoint, evaluation, end).
  void finish_sends();

  /// Hands the gradients of tied parameters to their owners. To be called for all stages of a rank after
  /// their Reduces and before the first Update of a step. complete_gradients() does it otherwise.
  void prepare_update() {
    if (!gradients_complete_) ties_.give_gradients();
  }
  /// Completes the gradients of the next Update: adds those of all uses of a tied parameter, and clips by
  /// value. Where an Update depends on other stages, the caller completes all stages before the first Update;
  /// update() does it otherwise. Throws NumericError if no job's loss is finite.
  void complete_gradients();
  /// The Update: the rules turn the gradients into the next version of the weights. `scalars`: by job.
  /// Collective over the replicas that share a rule's state.
  void update(const std::vector<UpdateScalars>& scalars);

  /// Adds another stage of this rank (interleaved and V schedules). Tensors between the two stay in memory.
  void connect(StageExecutor& other) {
    borders_.connect(other.borders_);
    ties_.connect(other.ties_);
  }
  /// Puts microbatches under way aside, and makes running statistics those of the microbatches below `cut`.
  /// Collective over the replicas, after the update of all microbatches below `cut` and before any action of
  /// an evaluation. go_on() takes both back.
  void pause(std::int64_t cut);
  void go_on();
  /// Evaluates with the rules' averaged weights, if they have any, or trains on. Collective over the
  /// replicas; the caller calls finish_sends() before. Returns whether weights were exchanged; then tied
  /// values are under way, and finish_sends() waits for them.
  bool use_averages(bool averages);

  /// Where this step first had a number that is not finite, as far as was looked: activations if options say
  /// so, losses, and now weights and their gradients. For who knows that there is one.
  std::optional<NonfinitePlace> nonfinite_place();
  /// Whether the check of activations has found something since the last nonfinite_place().
  bool activations_nonfinite() const { return finite_ && finite_->found(); }

  /// Returns when the heads of the newest Forward began and ended on the device. Null: the stage has none, or
  /// the options do not ask for it.
  std::pair<std::unique_ptr<DeviceMark>, std::unique_ptr<DeviceMark>> take_loss_marks() {
    return std::exchange(loss_marks_, {});
  }

  StageHeads& heads() { return heads_; }
  RunningStatistics& statistics() { return statistics_; }
  MicrobatchVersions& versions() { return versions_; }
  /// The states that training carries from microbatch to microbatch, for checkpoints. Evaluations have
  /// others.
  CarriedStates& carried_states() { return carried_; }
  /// Adds up the heads' sums over the replicas, in the order of ranks. In training Reduce does it.
  void reduce_sums() { heads_.reduce(); }
  /// Joins what heads collect of the microbatches [from, to) of an evaluation (StageHeads). Collective over
  /// the replicas, after their forwards.
  void collect_microbatches(std::int64_t from, std::int64_t to) {
    heads_.collect_microbatches(
        from, to, [this](MicrobatchId m) { return context_.extent_of(context_.position_of(m)); });
  }
  /// The number of microbatches that were forwarded in training and whose backward is not done.
  int stashed_microbatches() const { return stashed_; }
  int peak_versions() const { return peak_versions_; }

 private:
  void forward(MicrobatchId microbatch);
  bool recomputes() const { return parts_.layout.recomputes[parts_.stage.value] != 0; }
  void keep_carried(LayerSlot& slot);
  void take_back(const std::vector<UpdateScalars>& scalars);
  CarriedStates& carried_of_run() { return context_.training ? carried_ : carried_in_evaluation_; }
  void backward(MicrobatchId microbatch, Op op, bool last_gradient);
  void backward_weights(MicrobatchId microbatch, bool last_gradient);
  void finish_backward(LayerSlot& slot);

  struct SumOverReplicas final : ReplicaSum {
    explicit SumOverReplicas(Communicator& r) : replicas(r) {}
    void add_up_(const at::Tensor& values, const char* what) override {
      replicas.all_reduce(values, what)->wait();
    }
    Communicator& replicas;
  };

  ExecutorParts parts_;
  ExecutorOptions options_;
  StageProgram program_;
  LayerRunner layers_;
  std::optional<SumOverReplicas> statistics_sum_;  ///< with sync_batch_norm, where there are replicas
  std::optional<FiniteCheck> finite_;              ///< with check_activations
  LayerSlots slots_;
  StageBorders borders_;
  StageHeads heads_;
  TiedExchange ties_;
  GradientReducer reducer_;
  RunningStatistics statistics_;
  MicrobatchVersions versions_;
  AveragedWeights averages_;
  RunContext context_;
  struct Paused {
    LayerSlots::Slots slots;
    std::vector<StageBorders::Message> posted;
    RunContext context;
  };
  std::optional<Paused> paused_;
  bool gradients_complete_ = false;
  std::pair<std::unique_ptr<DeviceMark>, std::unique_ptr<DeviceMark>> loss_marks_;
  CarriedStates carried_, carried_in_evaluation_;
  int stashed_ = 0;
  int peak_versions_ = 1;
};

}  // namespace millrace
