// How gradients change weights, on a stage's flat tensors, block by block and all jobs of an array at once:
// on the CPU by loops of our own (update_kernels.h), elsewhere by LibTorch's operators.
// ("Optimizer" means only the planner here.)
// runtime/rules/rule_table.h lists the rules, docs/rules.md has the formulas.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/rules/learning_rate.h"
#include "runtime/rules/rule_table.h"
#include "runtime/stage/state_shards.h"

namespace millrace {

struct UpdateCount {
  std::int64_t begin = 0;  ///< element of the flat tensor; up to the next one's
  std::int64_t updates = 0;
};

/// The scalars of one update of one job.
struct UpdateScalars {
  double lr = 0;
  double gradient_factor = 1;  ///< times the gradient first: 1 / scale of the loss, and clipping
  bool skip = false;           ///< nothing changes, the count of updates neither
};

/// Work on blocks of flat tensors, of one rule or of those of many jobs, that intra-op threads share.
class BlockWork {
 public:
  /// `work` may be called for parts of `range` in any order and at the same time. So that the passes of a
  /// block find in the cache what the ones before have read.
  void add(FlatRange range, std::function<void(FlatRange)> work);
  /// Adds work on a tensor that may be on a device. On a device the work is called at once, for the whole
  /// range.
  void add_on(const at::Tensor& tensor, FlatRange range, std::function<void(FlatRange)> work);
  void run();  ///< Does the work that was added, and forgets it.

 private:
  std::vector<std::function<void(FlatRange)>> works_;
  std::vector<std::pair<std::size_t, FlatRange>> blocks_;  ///< of which work
  std::int64_t elements_ = 0;
};

/// The loops of an update. Both kinds give the same bits on a processor with FMA.
enum class UpdateKernels {
  Own,    ///< where there are some: on such a CPU
  Torch,  ///< ATen's operators, as on a GPU
};

/// The parts that a rule is made for. `replicas` must outlive it; null or a group of one: nothing is shared.
struct RuleParts {
  const ParameterStore& store;
  Communicator* replicas = nullptr;
  UpdateKernels kernels = UpdateKernels::Own;
};

/// One rule for the parameters of one stage. It keeps state for, and updates, its shard of them: all, unless
/// replicas share it. Not thread-safe.
class UpdateRule {
 public:
  UpdateRule(const RuleOptions& options, const RuleParts& parts);
  virtual ~UpdateRule() = default;
  /// weights_ -= rule(gradient), in place, for all parameters; collective over the replicas that share the
  /// state. Both are [N]; what `gradient` holds afterwards means nothing.
  void apply_(const at::Tensor& weights, const at::Tensor& gradient, const UpdateScalars& scalars) {
    apply_all_(std::array{Update{this, weights, gradient, scalars}});
  }
  struct Update {
    UpdateRule* rule;
    at::Tensor weights, gradient;
    UpdateScalars scalars;
    std::int64_t begin = 0;  ///< the first element of the two tensors that the rule updates
  };
  /// Applies several rules, whose weights are apart. Their blocks are one piece of work, so that
  /// many small jobs take what one model of their size takes.
  static void apply_all_(std::span<const Update> updates);

  /// Flat state tensors by name ("momentum_buffer", "exp_avg", ...) of this rank's shard; shared, not copied.
  const std::vector<std::pair<std::string, at::Tensor>>& state() const { return state_; }
  FlatRange shard() const { return shards_.mine(); }
  /// The state of all shards [N] on the first replica, nothing on the others. Collective over the replicas.
  std::vector<std::pair<std::string, at::Tensor>> whole_state();
  /// Completes `flat` [N], which has this rank's shard, with the shards of all replicas. Collective over
  /// them.
  void all_gather_(const at::Tensor& flat) { shards_.all_gather_(flat); }
  /// Weights to evaluate with instead of the newest, of this rank's shard; undefined: those.
  virtual at::Tensor averaged_weights() const { return {}; }
  /// Lets averages begin after `updates` updates, in a rule that waits for it (RuleOptions::nonmonotone).
  virtual void begin_averaging(std::int64_t /*updates*/) {}
  /// The rate of the newest update, of a rule whose next one depends on it; for checkpoints.
  virtual std::optional<double> last_rate() const { return std::nullopt; }
  virtual void set_last_rate(double /*rate*/) {}

  /// How often the parameters that begin at `element` were updated.
  std::int64_t updates(std::int64_t element = 0) const;
  void set_updates(std::int64_t updates) { set_updates({{0, updates}}); }
  /// Ascending from element 0, which is the first: parameters may come from stages that were updated more or
  /// less often (resume of a replicated asynchronous run under another plan).
  void set_updates(std::vector<UpdateCount> counts);

 protected:
  /// Parts of the shard whose elements are treated alike: decay and the updates done before this one.
  struct Segment {
    FlatRange range;
    bool decays = true;
    std::int64_t updates = 0;
  };
  const std::vector<Segment>& segments() const;
  /// Of this rank's shard alone, at once or in `work`, which has been done before the next call. Counts are
  /// those before this update.
  virtual void update_(const Update& update, BlockWork& work) = 0;
  /// When update_'s work of all rules is done: what needed it. Collective over the replicas.
  virtual void finish_(const Update& /*update*/, BlockWork& /*work*/) {}
  at::Tensor part_of(const Update& update, const at::Tensor& flat) const;
  bool own_kernels(const at::Tensor& weights) const;
  static void multiply_(at::Tensor gradient, double factor);

  double number(std::optional<double> RuleOptions::*member) const { return *(options_.*member); }
  /// Of the weights, of a segment that decays or not.
  double decay_of(bool decays) const { return decays ? number(&RuleOptions::weight_decay) : 0; }
  bool decays(const ParameterSlot& slot) const;
  /// Returns the range of a parameter in this rank's shard, padding included; it may be empty.
  FlatRange shard_of_slot(std::size_t slot) const;
  at::Tensor add_state(const std::string& name);  ///< zeros, one element for each of the shard
  /// The part of a state tensor that belongs to `range` of the flat tensors.
  at::Tensor part(const at::Tensor& state, FlatRange range) const {
    return state.narrow(0, range.begin - shard().begin, range.size());
  }

  const RuleOptions options_;  ///< with every number
  const std::vector<ParameterSlot> slots_;
  StateShards shards_;

 private:
  UpdateKernels kernels_;
  std::int64_t elements_;  ///< of the flat tensors
  at::TensorOptions tensors_;
  std::vector<ParameterGroup> no_decay_;
  std::vector<std::pair<std::string, at::Tensor>> state_;
  std::vector<UpdateCount> counts_{{0, 0}};
  mutable std::vector<Segment> segments_;  ///< once asked for, until counts are set
};

/// `options` are valid. `replicas`: of the stage, or null; they share the state if the options say so.
std::unique_ptr<UpdateRule> make_update_rule(const RuleOptions& options, const ParameterStore& store,
                                             Communicator* replicas = nullptr,
                                             UpdateKernels kernels = UpdateKernels::Own);

/// A rule with what it updates: a job's part of the flat tensors (ParameterStore::of_job), so that nothing of
/// a job meets another's numbers, or of that only what a turn trains. The rule outlives it.
struct JobRule {
  UpdateRule* rule;
  int job = 0;
  std::optional<FlatRange> part{};  ///< of the job's part

  at::Tensor of(const ParameterStore& store, const at::Tensor& flat) const {
    const at::Tensor own = store.of_job(flat, job);
    return part ? own.narrow(0, part->begin, part->size()) : own;
  }
  /// `flat` are of `store`.
  UpdateRule::Update update(const ParameterStore& store, const at::Tensor& weights,
                            const at::Tensor& gradient, const UpdateScalars& scalars) const {
    const std::int64_t begin = job * (weights.size(0) / store.jobs()) + (part ? part->begin : 0);
    return {rule, weights, gradient, scalars, begin};
  }
};

/// The rules of a stage, one for each job (one, if it is no array).
struct JobRules {
  std::vector<JobRule> all;
  JobRules(UpdateRule& one) : all{{&one}} {}  // NOLINT
  explicit JobRules(std::vector<JobRule> rules) : all(std::move(rules)) {}
};

}  // namespace millrace
