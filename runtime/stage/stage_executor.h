// Executes the actions of one stage on one rank. It knows no schedule: it is one switch over ten ops.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"
#include "runtime/schedule/schedule.h"
#include "runtime/schedule/schedule_stream.h"
#include "runtime/stage/gradient_reducer.h"
#include "runtime/stage/layer_runner.h"
#include "runtime/stage/parameter_store.h"
#include "runtime/stage/stage_layout.h"
#include "runtime/stage/stage_program.h"
#include "runtime/stage/tied_exchange.h"
#include "runtime/stage/update_rule.h"

namespace millrace {

struct ExecutorOptions {
  std::vector<std::uint64_t> seeds{0};  ///< by job
  /// Number of microbatches whose losses one update sums up. Their weights (samples, tokens) are known
  /// beforehand, so each loss is scaled by its share at once.
  int microbatches_per_update = 1;
  double gradient_scale = 1;  ///< factor on gradients before the update: 1 / replicas if asynchronous, else 1
  /// The greatest absolute value of a gradient's element, by job; 0 or no entry: gradients stay as they are.
  std::vector<double> clip_values{};
  std::int64_t bucket_bytes = 4 << 20;  ///< bytes of gradients in one all-reduce
  /// Throw NumericError before an Update if the losses of all jobs are NaN or Inf (last stage).
  bool stop_on_nonfinite = false;
  /// Batch normalisation takes statistics over the microbatches that all replicas run at the same time. Their
  /// schedule must pass check_rounds.
  bool sync_batch_norm = false;
  MasksFrom masks = MasksFrom::Device;
};

/// The means that the model's heads report, on the last stage, for the microbatches since the previous
/// report.
struct LossSums {
  NamedValues values;  ///< "loss" first (head_values); with several jobs their mean (values_of_jobs)
  std::vector<NamedValues> jobs;  ///< by job; empty: nothing was summed up
  double weight = 0;              ///< samples or tokens that the first head has seen
  double mean_loss() const { return values.empty() ? 0 : values.front().second; }
};

/// The parts that an executor works with. All must outlive it. `replicas` is null for a stage on one rank.
struct ExecutorParts {
  const StageLayout& layout;
  StageId stage;
  ParameterStore& store;
  JobRules rules;
  Communicator& world;
  Communicator* replicas;
  Device& device;
  /// by stage: its ranks; may be empty if this rank holds no other stage and nothing is tied
  std::vector<std::vector<RankId>> ranks_of_stage{};
  MessageNumbers numbers{};  ///< keeps messages of several models on the same ranks apart
};

/// The context of the microbatches of a step, of a flow or of an evaluation. It stays the same until the next
/// one begins.
struct RunContext {
  std::int64_t first_position = 0;  ///< position of microbatch 0: messages and random draws go by positions
  ExtentOf extent_of{};  ///< extents by position, the same on every rank; null: the layout's nominal extent
  std::vector<std::int64_t> begins{};  ///< by job: the position where its own run begins; empty: 0
  /// evaluations subtract it from positions before they draw, so that each draws the same
  std::int64_t evaluation_shift = 0;
  std::vector<double> loss_scales{};  ///< by job: the loss is multiplied by it; empty: 1
};

/// Runs the actions of one stage on one rank. Not thread-safe. Throws PeerError (communication), DataError
/// and NumericError.
class StageExecutor {
 public:
  StageExecutor(const ExecutorParts& parts, const ExecutorOptions& options);

  /// Lets the microbatches that follow run in `context`.
  void begin(RunContext context);
  /// Begins an asynchronous run. The forward of microbatch m uses version max(oldest, current + m /
  /// per_version - lag), where current is the version at this call. This rank has the microbatches that are
  /// `replica` modulo `replicas`. Without this call a forward uses the newest version (flushing schedules).
  void set_versions(const VersionRule& rule, VersionId oldest, int replica, int replicas);
  /// For asynchronous runs with running statistics: lets the executor keep the statistics as they are
  /// before microbatches `cut` and later, for every `cut` that `is_cut` accepts (see pause()). Null: none
  /// are kept.
  void set_cuts(std::function<bool(std::int64_t microbatch)> is_cut) { is_cut_ = std::move(is_cut); }
  /// Names the jobs that have ended, by job. Their running statistics stay as they are from now on;
  /// UpdateScalars::skip does the same for their weights. To be called between steps.
  void set_ended(const std::vector<char>& ended);
  /// Switches between training and evaluation. Evaluation uses the rule's averaged weights, if it has any,
  /// until training goes on. Collective over the replicas; the caller calls finish_sends() before. Returns
  /// whether weights were exchanged. Tied values are then under way, and finish_sends() waits for them.
  bool set_training(bool training);
  /// Puts the microbatches in flight aside and sets the running statistics to those of the microbatches
  /// below `cut`. go_on() undoes both. To be called after the update of all microbatches below `cut` and
  /// before any action of an evaluation. Collective over the replicas.
  void pause(std::int64_t cut);
  void go_on();

  /// Takes the batch of a microbatch before its Forward, with the fields that this stage reads. Throws
  /// DataError if a value is outside its field's limit.
  void feed(MicrobatchId microbatch, const Batch& batch);
  bool reads_batch() const { return program_.reads_batch(); }
  const StageProgram& program() const { return program_; }
  /// Returns the states that training carries from microbatch to microbatch, for checkpoints. Evaluations
  /// have states of their own.
  CarriedStates& carried_states() { return carried_; }

  /// Connects another stage of this rank (interleaved and V schedules). Tensors between the two stay in
  /// memory: the schedule has no transfers for them.
  void connect(StageExecutor& other) {
    siblings_.push_back(&other);
    ties_.connect(other.ties_);
  }
  StageId stage() const { return parts_.stage; }
  bool is_last() const { return parts_.stage.value == parts_.layout.num_stages() - 1; }

  /// Posts the receive of a coming Recv action, so that the data can travel during computation.
  void post_receive(const Action& action);

  /// Runs any action but Update. `last_gradient` tells that no further backward adds to the gradients
  /// before the next Update. Buckets are then reduced as they become ready.
  void execute(const Action& action, bool last_gradient = false);

  /// Waits for the sends in flight and for tied weights that are on their way. To be called before this
  /// rank rests (checkpoint, evaluation, end).
  void finish_sends();

  /// Hands the gradients of tied parameters to their owners. To be called for all stages of a rank after
  /// their Reduces and before the first Update of a step. If it was not called, the Update does it.
  void prepare_update() {
    if (!gradients_complete_) ties_.give_gradients();
  }
  /// Completes the gradients of the next Update: adds those of all uses of a tied parameter, and clips by
  /// value. If an Update depends on other stages, the caller completes all stages before the first Update;
  /// else update() does it. Throws NumericError if no job's loss is finite.
  void complete_gradients();
  /// Runs the Update: the rules turn the gradients into the next version of the weights. `scalars` has
  /// those of each job. Collective over the replicas that share a rule's state.
  void update(const std::vector<UpdateScalars>& scalars);

  /// Adds up the heads' sums over the replicas, in the order of ranks. In training the Reduce does it.
  void reduce_sums();
  /// returns the means and starts new sums; waits for the device
  LossSums take_losses() { return losses_of(take_sums()); }
  std::vector<double> take_sums();  ///< the sums of all heads of the model
  LossSums losses_of(std::span<const double> sums) const;
  /// Returns the number of microbatches that were forwarded in training and whose backward is not done.
  int stashed_microbatches() const { return stashed_; }
  int peak_versions() const { return peak_versions_; }

 private:
  struct Message {
    std::uint64_t tag;  ///< tag of its first tensor, which identifies the message
    std::vector<at::Tensor> tensors;
    std::unique_ptr<Pending> pending;
  };

  VersionId pin_version(MicrobatchId microbatch);
  void forward(MicrobatchId microbatch);
  void run_heads(LayerSlot& slot);
  void keep_carried(LayerSlot& slot);
  CarriedStates& carried_of_run() { return training_ ? carried_ : carried_in_evaluation_; }
  void backward(MicrobatchId microbatch, Op op, bool last_gradient);
  void backward_weights(MicrobatchId microbatch, bool last_gradient);
  void send(const Action& action);
  void receive(const Action& action);
  void reduce();
  void check_loss();
  bool exchange_averages();
  /// Returns the executor on this rank that runs `microbatch` of `stage`; null: another rank runs it.
  StageExecutor* sibling(int stage, MicrobatchId microbatch) const;
  void hand_over_activations(LayerSlot& slot);
  void hand_over_gradients(LayerSlot& slot);
  LayerSlot& slot_for(MicrobatchId microbatch);
  void accept_gradient(LayerSlot& slot, const Port& port, at::Tensor value);
  void release_if_sent(LayerSlot& slot);
  void finish_backward(LayerSlot& slot);
  void collect_sums();
  std::vector<LossScale> scales_of(const HeadStep& head, MicrobatchId microbatch);  ///< by job
  /// Ports and tags of a transfer action.
  struct Route {
    const std::vector<Port>* ports;
    bool gradient;
    bool sends;
  };
  Route route_of(const Action& action) const;
  std::uint64_t tag_of(const Action& action, const Port& port, bool gradient) const;
  std::vector<Transfer> transfers(const Action& action, const Route& route,
                                  const std::vector<at::Tensor>& tensors) const;
  VersionId version_for(std::int64_t microbatch) const;
  void join_statistics();
  void keep_statistics(MicrobatchId microbatch);
  void restore_ended();

  struct SumOverReplicas final : ReplicaSum {
    explicit SumOverReplicas(Communicator& r) : replicas(r) {}
    void add_up_(const at::Tensor& values, const char* what) override {
      replicas.all_reduce(values, what)->wait();
    }
    Communicator& replicas;
  };

  ExecutorParts parts_;
  ExecutorOptions options_;
  std::optional<SumOverReplicas> statistics_sum_;  ///< set with sync_batch_norm, if the stage has replicas
  StageProgram program_;
  LayerRunner layers_;
  TiedExchange ties_;
  GradientReducer reducer_;
  ShapeCache shapes_;
  std::vector<StageExecutor*> siblings_;
  bool recomputes_ = false;
  bool training_ = true;
  RunContext context_;
  struct VersionsOfRun {
    VersionRule rule;
    VersionId first, oldest;
    int replica, replicas;
  };
  std::optional<VersionsOfRun> versions_;  ///< see set_versions
  std::function<bool(std::int64_t)> is_cut_;
  /// by microbatch: the statistics before it; see set_cuts()
  std::map<std::int64_t, ParameterStore::Buffers> statistics_;
  struct Paused {
    std::vector<std::unique_ptr<LayerSlot>> slots;
    std::vector<Message> posted;
    std::optional<ParameterStore::Buffers> statistics{};
    RunContext context;
  };
  std::optional<Paused> paused_;
  /// slots of the microbatches in flight; they are few, so a linear search finds them
  std::vector<std::unique_ptr<LayerSlot>> slots_;
  std::vector<std::unique_ptr<LayerSlot>> free_slots_;
  std::vector<Message> posted_;  ///< receives that are posted and not yet executed
  std::unordered_map<int, std::deque<std::unique_ptr<Pending>>> sends_;  ///< by peer stage
  bool gradients_complete_ = false;
  std::vector<char> ended_;                    ///< by job; empty: none
  ParameterStore::Buffers statistics_at_end_;  ///< statistics of all jobs at the time when jobs last ended
  /// Parameters of ended jobs that a forward writes to, each with a copy of its values at that end.
  std::vector<std::pair<at::Tensor, at::Tensor>> written_at_end_;
  CarriedStates carried_, carried_in_evaluation_;
  at::Tensor trained_weights_;  ///< [N]: the trained weights while averages stand in their place
  std::vector<double> sums_;
  at::Tensor sums_on_device_;  // [num_sums] float64, not added to sums_ yet; undefined: nothing to add
  /// first position of a step, and the sum of the extents of its microbatches
  std::pair<std::int64_t, BatchExtent> step_total_{-1, {}};
  int stashed_ = 0;
  int peak_versions_ = 1;
};

}  // namespace millrace
