// How gradients change weights: SGD and Adam through LibTorch's fused kernels on flat tensors, and the
// learning rate's schedule. ("Optimizer" means only the planner here.)
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/base/result.h"
#include "runtime/stage/update_options.h"

namespace millrace {

struct UpdateCount {
  std::int64_t begin = 0;  ///< element of the flat tensor; up to the next one's
  std::int64_t updates = 0;
};

/// One rule for the parameters of one stage, as one flat float32 tensor [N]. Not thread-safe.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  /// weights_ -= rule(gradient), in place; `gradient` is left as it is.
  virtual void apply_(at::Tensor weights, const at::Tensor& gradient, double lr) = 0;
  /// Flat state tensors [N] by name ("momentum_buffer", "exp_avg", ...), for checkpoints; shared, not copied.
  virtual std::vector<std::pair<std::string, at::Tensor>> state() = 0;
  /// How often the parameters that begin at `element` were updated.
  std::int64_t updates(std::int64_t element = 0) const;
  void set_updates(std::int64_t updates) { set_updates({{0, updates}}); }
  /// Ascending from element 0, which is the first: parameters may come from stages that were updated more or
  /// less often (resume of a replicated asynchronous run under another plan).
  void set_updates(std::vector<UpdateCount> counts);

 protected:
  void count_update();
  /// Where the counts differ; equal neighbours are one.
  const std::vector<UpdateCount>& counts() const { return counts_; }

 private:
  std::vector<UpdateCount> counts_{{0, 0}};
};

std::unique_ptr<UpdateRule> make_update_rule(const RuleOptions& options, const at::Tensor& like);

/// Learning rate of step `step` (from 0). PipeDream's policies (pipedream.md 5.4) per step. Pure.
double learning_rate(const LearningRateOptions& options, std::int64_t step);
Problems validate(const LearningRateOptions& options);

}  // namespace millrace
