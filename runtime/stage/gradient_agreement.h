// What the ranks must agree on before any stage updates: the norm of the whole model's gradient.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/model/stage_layout.h"
#include "runtime/stage/parameter_store.h"

namespace millrace {

/// Clips to a norm of `limit`: the factor for gradients whose norm is `norm`, as torch's clip_grad_norm_
/// (limit / (norm + 1e-6), at most 1). `exact`: LAMB's limit / norm.
double clip_factor(double norm, double limit, bool exact);

/// Root of the sum of `square_sums`, in their order.
double norm_of(const std::vector<double>& square_sums);

/// Returns the 2-norm of each job's gradient in `store`, over the store's parameters.
std::vector<double> norms_by_job(const ParameterStore& store);

/// Not thread-safe.
class GradientAgreement {
 public:
  /// Collective over all ranks of `world`; `model`: which of those that share the ranks.
  GradientAgreement(Communicator& world, const StageLayout& layout, int model = 0);

  /// A stage of this rank whose gradients are complete. Of its replicas, which have the same, one speaks.
  struct Part {
    const ParameterStore* store;
    bool speaks;
  };
  /// Collective, once for each step. The 2-norm over all parameters of the model, each counted once whoever
  /// uses it: square sums for each parameter are exchanged and added up in the order of the model's
  /// parameters, so that every rank of every plan finds the same bits. Not finite if a gradient is not. One
  /// for each job, of its own gradients alone.
  std::vector<double> norms(const std::vector<Part>& parts);

 private:
  std::unique_ptr<Communicator> group_;  ///< null: one rank
  int jobs_ = 1;
  std::unordered_map<std::string, std::size_t> places_;  ///< of the model's parameters, in its order, by job
};

}  // namespace millrace
