// Update rules compute new weights from gradients, on a stage's flat tensors, block by block and for all jobs
// of an array at once. On the CPU they use their own loops (update_kernels.h), elsewhere LibTorch's
// operators. ("Optimizer" means only the planner here.)
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
  std::int64_t begin = 0;  ///< first element in the flat tensor; the entry applies up to the next one's
  std::int64_t updates = 0;
};

/// The scalars of one update of one job.
struct UpdateScalars {
  double lr = 0;
  double gradient_factor = 1;  ///< factor on the gradient: 1 / loss scale, and clipping
  bool skip = false;           ///< nothing changes, not even the update count
  /// Even if it skips, replicas that shard a rule's state send each other the weights of their parts.
  bool exchanges = false;
};

/// A list of work on blocks of flat tensors, for one rule or for the rules of many jobs. Intra-op threads
/// share it.
class BlockWork {
 public:
  /// Adds `work` on `range`. It may be called for parts of `range` in any order and concurrently. Parts are
  /// small, so that each pass over a block finds the previous pass's data in the cache.
  void add(FlatRange range, std::function<void(FlatRange)> work) {
    add(std::span(&range, 1), std::move(work));
  }
  void add(std::span<const FlatRange> ranges, std::function<void(FlatRange)> work);
  /// Adds work on a tensor that may be on a device. On a device the work is called immediately, for the whole
  /// range.
  void add_on(const at::Tensor& tensor, FlatRange range, std::function<void(FlatRange)> work);
  void run();  ///< runs the added work, then clears the list

 private:
  std::vector<std::function<void(FlatRange)>> works_;
  std::vector<std::pair<std::size_t, FlatRange>> blocks_;  ///< (index in works_, range)
  std::int64_t elements_ = 0;
};

/// The implementation of an update. Both kinds give the same bits on a processor with FMA.
enum class UpdateKernels {
  Own,    ///< the loops of update_kernels.h, if the CPU has FMA
  Torch,  ///< ATen's operators, as on a GPU
};

/// The parts for which a rule is made. `replicas` must outlive it; null or a group of one: nothing is
/// sharded.
struct RuleParts {
  const ParameterStore& store;
  Communicator* replicas = nullptr;
  UpdateKernels kernels = UpdateKernels::Own;
};

/// One rule for the parameters of one stage. It keeps state for its shard of the parameters, and updates that
/// shard. The shard is all of them unless replicas shard the rule state. Not thread-safe.
class UpdateRule {
 public:
  UpdateRule(const RuleOptions& options, const RuleParts& parts);
  virtual ~UpdateRule() = default;
  /// Updates all parameters in place: weights -= rule(gradient). Collective over the replicas that shard the
  /// state. Both tensors are [N]; `gradient` has unspecified contents afterwards.
  void apply_(const at::Tensor& weights, const at::Tensor& gradient, const UpdateScalars& scalars) {
    apply_all_(std::array{Update{this, weights, gradient, scalars}});
  }
  struct Update {
    UpdateRule* rule;
    at::Tensor weights, gradient;
    UpdateScalars scalars;
    std::int64_t begin = 0;  ///< the first element of the two tensors that the rule updates
    /// If the rule updates_touched(): the ascending parts of its elements whose gradient may be nonzero.
    /// Null: all of them.
    const std::vector<FlatRange>* touched = nullptr;
  };
  /// Applies several rules whose weights do not overlap. Their blocks form one work list, so many small jobs
  /// take as long as one model of their total size.
  static void apply_all_(std::span<const Update> updates);

  /// Returns whether an element with zero gradient keeps its value and changes no state, so that the rule may
  /// skip it (Update::touched). It then also leaves such gradients zero.
  virtual bool updates_touched(const at::Tensor& /*weights*/) const { return false; }

  /// Returns the flat state tensors of this rank's shard by name ("momentum_buffer", "exp_avg", ...); shared,
  /// not copied.
  const std::vector<std::pair<std::string, at::Tensor>>& state() const { return state_; }
  FlatRange shard() const { return shards_.mine(); }
  /// Returns the state of all shards [N] on the first replica, and nothing on the others. Collective over the
  /// replicas.
  std::vector<std::pair<std::string, at::Tensor>> whole_state();
  /// Completes `flat` [N], which has this rank's shard, with the shards of all replicas. Collective over the
  /// replicas.
  void all_gather_(const at::Tensor& flat) { shards_.all_gather_(flat); }
  /// Returns the weights of this rank's shard that evaluations use instead of the newest. Undefined:
  /// evaluations use the newest.
  virtual at::Tensor averaged_weights() const { return updates() > 0 ? ema_ : at::Tensor(); }
  /// Starts averaging after `updates` updates, in a rule that waits for it (RuleOptions::nonmonotone).
  virtual void begin_averaging(std::int64_t /*updates*/) {}
  /// Returns the rate of the newest update, for checkpoints, if the rule's next update depends on it.
  virtual std::optional<double> last_rate() const { return std::nullopt; }
  virtual void set_last_rate(double /*rate*/) {}

  /// Returns how often the parameters that start at `element` were updated.
  std::int64_t updates(std::int64_t element = 0) const;
  void set_updates(std::int64_t updates) { set_updates({{0, updates}}); }
  /// Sets the update counts, ascending from element 0. Counts differ if parameters come from stages that were
  /// updated more or less often (resume of a replicated asynchronous run under another plan).
  void set_updates(std::vector<UpdateCount> counts);

 protected:
  /// A part of the shard whose elements are treated alike: whether they decay, and the number of earlier
  /// updates.
  struct Segment {
    FlatRange range;
    bool decays = true;
    std::int64_t updates = 0;
  };
  const std::vector<Segment>& segments() const;
  /// Updates this rank's shard, immediately or by adding to `work`. That work is done before the next call.
  /// Update counts exclude this update.
  virtual void update_(const Update& update, BlockWork& work) = 0;
  /// Does the second part of an update, after the work of update_() of all rules is done. Collective over the
  /// replicas.
  virtual void finish_(const Update& /*update*/, BlockWork& /*work*/) {}
  at::Tensor part_of(const Update& update, const at::Tensor& flat) const;
  bool own_kernels(const at::Tensor& weights) const;
  static void multiply_(at::Tensor gradient, double factor);

  double number(std::optional<double> RuleOptions::*member) const { return *(options_.*member); }
  /// Returns the weight decay of a segment, which is 0 if the segment does not decay.
  double decay_of(bool decays) const { return decays ? number(&RuleOptions::weight_decay) : 0; }
  bool decays(const ParameterSlot& slot) const;
  /// Returns the range of a parameter in this rank's shard, padding included; it may be empty.
  FlatRange shard_of_slot(std::size_t slot) const;
  at::Tensor add_state(const std::string& name);  ///< zeros, one element for each of the shard
  /// Returns the part of a state tensor that belongs to `range` of the flat tensors.
  at::Tensor part(const at::Tensor& state, FlatRange range) const {
    return state.narrow(0, range.begin - shard().begin, range.size());
  }

  const RuleOptions options_;  ///< every number is set
  const std::vector<ParameterSlot> slots_;
  StateShards shards_;

 private:
  void average_(const Update& update);
  UpdateKernels kernels_;
  std::int64_t elements_;  ///< length of the flat tensors
  at::TensorOptions tensors_;
  std::vector<ParameterGroup> no_decay_;
  std::vector<std::pair<std::string, at::Tensor>> state_;
  at::Tensor ema_;  ///< average of the shard's weights (RuleOptions::ema); undefined: none is kept
  std::vector<UpdateCount> counts_{{0, 0}};
  mutable std::vector<Segment> segments_;  ///< made on first use; cleared when counts are set
};

/// Makes the rule for a stage's parameters. `options` must be valid. `replicas` joins the replicas of the
/// stage, or is null; they shard the rule state if the options specify it.
std::unique_ptr<UpdateRule> make_update_rule(const RuleOptions& options, const ParameterStore& store,
                                             Communicator* replicas = nullptr,
                                             UpdateKernels kernels = UpdateKernels::Own);

/// A rule with the tensors that it updates: a job's part of the flat tensors (ParameterStore::of_job), or the
/// part of it that a turn trains. Different jobs' numbers therefore never mix. The rule must outlive it.
struct JobRule {
  UpdateRule* rule;
  int job = 0;
  std::optional<FlatRange> part{};  ///< range within the job's part; unset: all of it

  at::Tensor of(const ParameterStore& store, const at::Tensor& flat) const {
    const at::Tensor own = store.of_job(flat, job);
    return part ? own.narrow(0, part->begin, part->size()) : own;
  }
  /// Returns the update of this rule. `weights` and `gradient` are flat tensors of `store`.
  UpdateRule::Update update(const ParameterStore& store, const at::Tensor& weights,
                            const at::Tensor& gradient, const UpdateScalars& scalars) const {
    const std::int64_t begin = job * (weights.size(0) / store.jobs()) + (part ? part->begin : 0);
    return {rule, weights, gradient, scalars, begin};
  }
};

/// The rules of a stage, one per job (a single one if it is not an array).
struct JobRules {
  std::vector<JobRule> all;
  JobRules(UpdateRule& one) : all{{&one}} {}  // NOLINT
  explicit JobRules(std::vector<JobRule> rules) : all(std::move(rules)) {}
};

}  // namespace millrace
