// Executes the actions of one rank's stage. It is independent of the schedule: one switch over ten ops.
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

/// One stage on one rank, composed of its parts. Not thread-safe. Throws PeerError (communication),
/// DataError, and NumericError in the functions that check.
class StageExecutor {
 public:
  StageExecutor(const ExecutorParts& parts, const ExecutorOptions& options);
  StageExecutor(const StageExecutor&) = delete;  // its parts refer to each other
  StageExecutor& operator=(const StageExecutor&) = delete;

  /// Sets the context of the following microbatches.
  void begin(RunContext context);
  const StageProgram& program() const { return program_; }
  /// Sets the batch of a microbatch before its Forward, with the fields that this stage reads. Throws
  /// DataError if a value is outside its field's limit.
  void feed(MicrobatchId microbatch, const Batch& batch);
  /// Posts the receive of an upcoming Recv action, so that the transfer overlaps computation.
  void post_receive(const Action& action) { borders_.post_receive(action, context_); }
  /// Runs any action except Update. `last_gradient`: no further backward adds to the gradients before the
  /// next Update; buckets are reduced as they become ready.
  void execute(const Action& action, bool last_gradient = false);
  /// Waits for the sends in flight, and for tied weights in transfer. Must be called before this rank pauses
  /// (checkpoint, evaluation, end).
  void finish_sends();

  /// Sends the gradients of tied parameters to their owners. Must be called for all stages of a rank after
  /// their Reduces and before the first Update of a step. Otherwise complete_gradients() does it.
  void prepare_update() {
    if (!gradients_complete_) ties_.give_gradients();
  }
  /// Completes the gradients for the next Update: adds those of all uses of a tied parameter, and clips by
  /// value. If an Update depends on other stages, the caller must complete all stages before the first
  /// Update. Otherwise update() does it. Throws NumericError if no job's loss is finite.
  void complete_gradients();
  /// Runs the Update: the rules compute the next version of the weights from the gradients. `scalars`: by
  /// job. Collective over the replicas that share a rule's state.
  void update(const std::vector<UpdateScalars>& scalars);

  /// Adds another stage of this rank (interleaved and V schedules). Tensors between the two stay in memory.
  void connect(StageExecutor& other) {
    borders_.connect(other.borders_);
    ties_.connect(other.ties_);
  }
  /// Sets the microbatches in flight aside, and restores the running statistics from before microbatch `cut`.
  /// Collective over the replicas. Must be called after the update of all microbatches below `cut` and before
  /// any action of an evaluation. go_on() reverts both.
  void pause(std::int64_t cut);
  void go_on();
  /// Switches to the rules' averaged weights, if they have any, for an evaluation, or back to the trained
  /// ones. Collective over the replicas; the caller must call finish_sends() first. Returns whether weights
  /// were exchanged; then tied values are in transfer, and finish_sends() waits for them.
  bool use_averages(bool averages);

  /// Returns where this step first had a number that is not finite, as far as it was checked: activations if
  /// enabled, losses, and now weights and their gradients. For callers that know that there is one.
  std::optional<NonfinitePlace> nonfinite_place();
  /// Returns whether the check of activations has found something since the last nonfinite_place().
  bool activations_nonfinite() const { return finite_ && finite_->found(); }

  /// Returns when the heads of the newest Forward started and ended on the device. Null: the stage has none,
  /// or the options do not enable it.
  std::pair<std::unique_ptr<DeviceMark>, std::unique_ptr<DeviceMark>> take_loss_marks() {
    return std::exchange(loss_marks_, {});
  }

  StageHeads& heads() { return heads_; }
  RunningStatistics& statistics() { return statistics_; }
  MicrobatchVersions& versions() { return versions_; }
  /// The states that training carries between microbatches, for checkpoints. Evaluations have separate ones.
  CarriedStates& carried_states() { return carried_; }
  /// Sums the heads' sums over the replicas, in rank order. In training, Reduce does it.
  void reduce_sums() { heads_.reduce(); }
  /// Joins the heads' collected data of the microbatches [from, to) of an evaluation (StageHeads). Collective
  /// over the replicas, after their forwards.
  void collect_microbatches(std::int64_t from, std::int64_t to) {
    heads_.collect_microbatches(
        from, to, [this](MicrobatchId m) { return context_.extent_of(context_.position_of(m)); });
  }
  /// The number of microbatches whose training forward is complete and whose backward is not.
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
  std::optional<SumOverReplicas> statistics_sum_;  ///< with sync_batch_norm, if there are replicas
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
