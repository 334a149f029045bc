// How gradients change weights, on a stage's flat tensors: SGD, Adam and AdamW through LibTorch's fused
// kernels, the others in few passes, block by block. ("Optimizer" means only the planner here.)
// runtime/rules/rule_table.h lists the rules, docs/rules.md has the formulas.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
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

/// What one update of one job is told.
struct UpdateScalars {
  double lr = 0;
  double gradient_factor = 1;  ///< times the gradient first: 1 / scale of the loss, and clipping
  bool skip = false;           ///< nothing changes, the count of updates neither
};

/// One rule for the parameters of one stage. It keeps state for, and updates, its shard of them: all, unless
/// replicas share it. Not thread-safe.
class UpdateRule {
 public:
  /// `replicas` outlives it; null or a group of one: nothing is shared.
  UpdateRule(const RuleOptions& options, const ParameterStore& store, Communicator* replicas);
  virtual ~UpdateRule() = default;
  /// weights_ -= rule(gradient), in place, for all parameters; collective over the replicas that share the
  /// state. Both are [N]; what `gradient` holds afterwards means nothing.
  void apply_(const at::Tensor& weights, const at::Tensor& gradient, const UpdateScalars& scalars);

  /// Flat state tensors by name ("momentum_buffer", "exp_avg", ...) of this rank's shard; shared, not copied.
  const std::vector<std::pair<std::string, at::Tensor>>& state() const { return state_; }
  FlatRange shard() const { return shards_.mine(); }
  /// The state of all shards [N] on the first replica, nothing on the others. Collective over the replicas.
  std::vector<std::pair<std::string, at::Tensor>> whole_state();
  /// Of `flat` [N], which has this rank's shard, the other shards too. Collective over the replicas.
  void all_gather_(const at::Tensor& flat) { shards_.all_gather_(flat); }
  /// Weights to evaluate with instead of the newest, of this rank's shard; undefined: those.
  virtual at::Tensor averaged_weights() const { return {}; }
  /// Of a rule that waits for it (RuleOptions::nonmonotone): averages begin after `updates` updates.
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
  std::vector<Segment> segments() const;
  /// Of this rank's shard alone. Counts are those before this update.
  virtual void update_(const at::Tensor& weights, const at::Tensor& gradient, double lr) = 0;

  double number(std::optional<double> RuleOptions::*member) const { return value_of(options_, member); }
  bool decays(const ParameterSlot& slot) const;
  /// What this rank's shard has of a parameter, padding included; may be empty.
  FlatRange shard_of_slot(std::size_t slot) const;
  at::Tensor add_state(const std::string& name);  ///< zeros, one element for each of the shard
  /// The part of a state tensor that belongs to `range` of the flat tensors.
  at::Tensor part(const at::Tensor& state, FlatRange range) const {
    return state.narrow(0, range.begin - shard().begin, range.size());
  }

  const RuleOptions options_;
  const std::vector<ParameterSlot> slots_;
  StateShards shards_;

 private:
  std::int64_t elements_;  ///< of the flat tensors
  at::TensorOptions tensors_;
  std::vector<ParameterGroup> no_decay_;
  std::vector<std::pair<std::string, at::Tensor>> state_;
  std::vector<UpdateCount> counts_{{0, 0}};
};

/// `options` are valid. `replicas`: of the stage, or null; they share the state if the options say so.
std::unique_ptr<UpdateRule> make_update_rule(const RuleOptions& options, const ParameterStore& store,
                                             Communicator* replicas = nullptr);

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
};

/// The rules of a stage, one for each job (one, if it is no array).
struct JobRules {
  std::vector<JobRule> all;
  JobRules(UpdateRule& one) : all{{&one}} {}  // NOLINT
  explicit JobRules(std::vector<JobRule> rules) : all(std::move(rules)) {}
};

}  // namespace millrace
