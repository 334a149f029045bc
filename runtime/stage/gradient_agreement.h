// Computes the norm of the whole model's gradient on all ranks before any stage updates.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/model/stage_layout.h"
#include "runtime/stage/parameter_store.h"

namespace millrace {

/// Returns the factor that clips gradients with norm `norm` to `limit`, like torch's clip_grad_norm_: limit /
/// (norm + 1e-6), at most 1. With `exact` it is LAMB's limit / norm.
double clip_factor(double norm, double limit, bool exact);

/// Returns the square root of the sum of `square_sums`, added in order.
double norm_of(const std::vector<double>& square_sums);

/// Returns the 2-norm of each job's gradient in `store`, over the store's parameters.
std::vector<double> norms_by_job(const ParameterStore& store);

/// Computes gradient norms over all stages of a model. Not thread-safe.
class GradientAgreement {
 public:
  /// Collective over all ranks of `world`. `model` is the index of the model among those that share the
  /// ranks.
  GradientAgreement(Communicator& world, const StageLayout& layout, int model = 0);

  /// A stage of this rank whose gradients are complete. All its replicas have the same gradients; one of them
  /// contributes.
  struct Part {
    const ParameterStore* store;
    bool speaks;
  };
  /// Returns for each job the 2-norm of its gradients over all parameters of the model. A parameter counts
  /// once, however many layers use it. A norm is not finite if a gradient is not. Collective; called once per
  /// step.
  /// The ranks exchange the square sums of each parameter and add them in the model's parameter order. Every
  /// rank of every plan therefore gets the same bits.
  /// `troubled`, by job: 1 if this rank has found another number that is not finite. The norm of that job is
  /// then NaN on all ranks. It must be empty on all ranks, or on none.
  std::vector<double> norms(const std::vector<Part>& parts, const std::vector<char>& troubled = {});

 private:
  std::unique_ptr<Communicator> group_;  ///< null: one rank
  int jobs_ = 1;
  /// parameter name -> index in the model's parameter order, by job
  std::unordered_map<std::string, std::size_t> places_;
};

}  // namespace millrace
