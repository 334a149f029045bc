// Executes the actions of one rank's stage. Knows no schedule: one switch over ten ops.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"
#include "runtime/schedule/schedule.h"
#include "runtime/stage/loss.h"
#include "runtime/stage/parameter_store.h"
#include "runtime/stage/stage_layout.h"
#include "runtime/stage/update_rule.h"

namespace millrace {

struct ExecutorOptions {
  std::uint64_t seed = 0;
  double loss_scale = 1;  ///< of each microbatch's mean loss: 1 / microbatches per step; 1 if asynchronous
  double gradient_scale = 1;  ///< before the update: 1 / replicas if asynchronous (their mean), else 1
  std::int64_t bucket_bytes = 4 << 20;  ///< gradients per all-reduce
  bool stop_on_nonfinite = false;       ///< no Update by a loss that is NaN or Inf: NumericError (last stage)
};

/// Sums since the last Update; valid on the last stage.
struct LossSums {
  double loss = 0;         ///< sum of the microbatches' means
  double sample_loss = 0;  ///< sum over samples: differs where microbatches do in size
  std::int64_t microbatches = 0;
  std::int64_t samples = 0;
  std::int64_t top1 = 0;
  std::int64_t top5 = 0;
  double mean_loss() const { return microbatches ? loss / double(microbatches) : 0; }
};

/// What the executor works with; all outlive it. `replicas` is null for a stage on one rank.
struct ExecutorParts {
  const StageLayout& layout;
  StageId stage;
  ParameterStore& store;
  UpdateRule& rule;
  Communicator& world;
  Communicator* replicas = nullptr;
  std::vector<std::vector<RankId>> ranks_of_stage;  ///< empty: this rank holds no other stage
  Device* device = nullptr;                         ///< null: the CPU
};

/// Not thread-safe. Exceptions: PeerError (communication), DataError, NumericError via the caller's checks.
class StageExecutor {
 public:
  StageExecutor(const ExecutorParts& parts, const ExecutorOptions& options);

  /// Positions of the microbatches that follow are `first_position + microbatch` (tags, random streams).
  void begin(std::int64_t first_position, double lr);
  /// Which weight version the forward of each microbatch uses (index: microbatch), counted from the version
  /// that is current now; this rank has those that are `replica` modulo `replicas`. Empty: the newest at its
  /// forward. For the schedules whose version is another (forward_versions).
  void set_versions(std::vector<std::int64_t> versions, int replica, int replicas);
  void set_learning_rate(double lr) { lr_ = lr; }
  void set_training(bool training) { training_ = training; }
  /// Samples in each of the microbatches that follow, on every rank alike; at first the layout's.
  void set_samples(int samples) { samples_ = samples; }

  /// Gives the batch of a microbatch before its Forward: input on stages that read it, target on the last.
  void feed(MicrobatchId microbatch, at::Tensor input, at::Tensor target);
  bool needs_input() const { return needs_input_; }
  bool is_last() const { return is_last_; }

  /// Another stage of this rank (interleaved and V schedules). Tensors between the two stay in memory: the
  /// schedule has no transfers for them.
  void connect(StageExecutor& other) { siblings_.push_back(&other); }
  StageId stage() const { return parts_.stage; }

  /// Posts the receive of a coming Recv action, so that the data can travel during computation.
  void post_receive(const Action& action);

  /// `last_gradient`: no further backward adds to the gradients before the next Update; buckets are reduced
  /// as they become ready.
  void execute(const Action& action, bool last_gradient = false);

  /// Waits for the sends in flight: before this rank rests (checkpoint, evaluation, end).
  void finish_sends();

  LossSums take_losses();  ///< and starts new sums; waits for the device
  /// Forwarded in training and not yet through.
  int stashed_microbatches() const { return stashed_; }
  int peak_versions() const { return peak_versions_; }

 private:
  /// One layer of the stage with its tensors as indices into Slot::values.
  struct Step {
    const NamedLayer* layer;
    std::vector<int> inputs;
    int output;
    std::vector<char> needs;     ///< input gradient wanted (not for the batch)
    int index;                   ///< in the model
    std::vector<int> read_last;  ///< tensors that nothing of this stage or another reads after it
  };
  /// What one layer's use of a tensor adds to its gradient.
  struct GradientPart {
    int use;  ///< layer, index in the model
    at::Tensor value;
  };
  /// A microbatch between its first receive and its last backward.
  struct Slot {
    std::vector<at::Tensor> values;  ///< by tensor index
    std::vector<at::Tensor> gradients;
    std::unordered_map<int, std::vector<GradientPart>> parts;  ///< by tensor index, where is_in_parts_
    std::vector<Saved> saved;                                  ///< by layer
    std::vector<at::Tensor> kept;  ///< what came in, by tensor index: for a stage that recomputes
    at::Tensor target;
    SavedLoss loss;
    std::unordered_map<int, at::Tensor> output_gradients;  ///< by layer, from I to W
    bool through = false;                                  ///< its last backward is done
  };
  struct Message {
    std::vector<at::Tensor> tensors;
    std::unique_ptr<Pending> pending;
  };
  struct Bucket {
    int first_layer;
    std::int64_t begin, end;
  };

  VersionId pin_version(MicrobatchId microbatch);
  void forward(MicrobatchId microbatch);
  enum class Run { Evaluate, Train, TrainWithoutSaving, Again };
  void run_layers(Slot& slot, MicrobatchId microbatch, VersionId version, Run run);
  void recompute(Slot& slot, MicrobatchId microbatch, VersionId version);
  void backward(MicrobatchId microbatch, Op op, bool last_gradient);
  void backward_weights(MicrobatchId microbatch, bool last_gradient);
  void send(const Action& action);
  void receive(const Action& action);
  void reduce();
  void check_loss();
  void update();
  /// The stage of this rank that runs `microbatch` of `stage`; null: another rank does.
  StageExecutor* sibling(StageId stage, MicrobatchId microbatch) const;
  void hand_over_activations(MicrobatchId microbatch);
  void hand_over_gradients(MicrobatchId microbatch);
  void accept_activation(MicrobatchId microbatch, const std::string& tensor, at::Tensor value);
  void accept_gradient(MicrobatchId microbatch, const Crossing& crossing, at::Tensor value);
  void add_gradient(Slot& slot, int tensor, int use, at::Tensor value);
  at::Tensor take_gradient(Slot& slot, int tensor);
  void join_gradient_parts(Slot& slot);
  void release_if_sent(MicrobatchId microbatch);
  void add_loss(Slot& slot, const at::Tensor& logits);
  void collect_losses();
  void start_loss_gradient(Slot& slot);
  void finish_backward(MicrobatchId microbatch);
  void reduce_ready_buckets(int layer);
  void find_last_reads();
  std::vector<int> crossings_with(StageId from, StageId to) const;
  std::vector<Transfer> transfers(const Action& action, const std::vector<at::Tensor>& tensors) const;
  int tensor_index(const std::string& name) const;
  std::uint64_t random_seed(const NamedLayer& layer, MicrobatchId microbatch) const;

  ExecutorParts parts_;
  ExecutorOptions options_;
  std::vector<StageExecutor*> siblings_;
  std::vector<Step> steps_;
  std::vector<std::string> tensor_names_;
  /// By tensor index: layers of several stages read it, so the gradient is summed when all parts are there.
  std::vector<char> is_in_parts_;
  std::vector<Bucket> buckets_;  ///< from the last layer to the first
  std::size_t next_bucket_ = 0;
  std::vector<std::unique_ptr<Pending>> reductions_;
  bool needs_input_ = false;
  bool is_last_ = false;
  bool recomputes_ = false;
  std::size_t num_incoming_ = 1;  ///< the first tensors: the batch, and what other stages send
  bool training_ = true;
  std::int64_t samples_;
  std::int64_t first_position_ = 0;
  std::vector<std::int64_t> versions_;  ///< see set_versions; from base_version_
  VersionId base_version_{0};
  double lr_ = 0;
  std::unordered_map<MicrobatchId, Slot> slots_;
  std::unordered_map<std::string, Message> posted_;                      ///< receives, by action text
  std::unordered_map<int, std::deque<std::unique_ptr<Pending>>> sends_;  ///< by peer stage
  LossSums losses_;
  at::Tensor loss_on_device_;  // [5] as cross_entropy_sums, not yet in losses_; undefined: nothing
  std::int64_t microbatches_on_device_ = 0;
  int stashed_ = 0;
  int peak_versions_ = 1;
};

}  // namespace millrace
