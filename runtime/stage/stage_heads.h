// The heads of a model's last stage: the sums that they report, and the gradients that the backward begins
// with.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/comm/communicator.h"
#include "runtime/stage/layer_runner.h"
#include "runtime/stage/run_context.h"

namespace millrace {

/// Means that the heads of the model's last stage report for the microbatches since the previous report.
struct LossSums {
  NamedValues values;             ///< "loss" first (head_values); of several jobs their mean
  std::vector<NamedValues> jobs;  ///< by job; empty: nothing was summed up
  double weight = 0;              ///< samples or tokens that the first head has seen
  double mean_loss() const { return values.empty() ? 0 : values.front().second; }
};

/// Does nothing in a stage without heads. Not thread-safe.
class StageHeads {
 public:
  /// All must outlive the object. `microbatches_per_update` is ExecutorOptions's.
  StageHeads(const StageProgram& program, const LayeredModel& model, const LayerRunner& layers,
             int microbatches_per_update);

  /// A step, run or evaluation begins, with other extents.
  void begin() { step_total_.first = -1; }
  /// Adds the microbatch's losses and metrics to the sums. Training saves what backward() needs in the slot.
  void forward(LayerSlot& slot, bool training);
  /// Adds the heads' gradients for their inputs to the slot. Each is scaled by the microbatch's share in its
  /// step.
  void backward(LayerSlot& slot, const RunContext& context);

  /// Adds up the sums over the replicas, in the order of ranks.
  void reduce(Communicator& replicas);
  /// Returns the sums of all heads of the model and starts new ones. Waits for the device.
  std::vector<double> take_sums();
  LossSums losses_of(std::span<const double> sums) const;
  LossSums take_losses() { return losses_of(take_sums()); }
  /// Throws NumericError if a head's loss is NaN or Inf in all jobs.
  void require_finite();

 private:
  std::vector<LossScale> scales_of(const HeadStep& head, MicrobatchId microbatch, const RunContext& context);
  void collect();

  const StageProgram& program_;
  const LayeredModel& model_;
  const LayerRunner& layers_;
  int microbatches_per_update_;
  std::vector<double> sums_;
  at::Tensor sums_on_device_;  ///< [num_sums] float64, not yet in sums_; undefined: nothing
  std::pair<std::int64_t, BatchExtent> step_total_{-1, {}};  ///< first position of a step, sums over it
};

}  // namespace millrace
