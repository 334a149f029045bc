// The heads of a model's last stage: the sums that they report, and the initial gradients of the backward.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/comm/communicator.h"
#include "runtime/model/stage_layout.h"
#include "runtime/stage/finite_check.h"
#include "runtime/stage/layer_runner.h"
#include "runtime/stage/run_context.h"

namespace millrace {

/// Means that the heads of the model's last stage report for the microbatches since the previous report.
struct LossSums {
  NamedValues values;             ///< "loss" first (head_values); for several jobs their mean
  std::vector<NamedValues> jobs;  ///< by job; empty: nothing was summed
  double weight = 0;              ///< samples or tokens that the first head has counted
  double mean_loss() const { return values.empty() ? 0 : values.front().second; }
};

/// Does nothing in a stage without heads. Not thread-safe.
class StageHeads {
 public:
  /// All must outlive the object. `microbatches_per_update` is that of ExecutorOptions; `replicas` is null
  /// for a stage on one rank.
  StageHeads(const StageProgram& program, const StageLayout& layout, const LayerRunner& layers,
             Communicator* replicas, int microbatches_per_update);

  /// Starts a step, run or evaluation, with other extents.
  void begin() {
    step_total_.first = -1;
    first_nonfinite_.reset();
  }
  /// Adds the microbatch's losses and metrics to the sums. Training saves what backward() needs in the slot.
  void forward(LayerSlot& slot, bool training);
  /// Joins the heads' collected data of an evaluation's microbatches [from, to). The replicas send theirs to
  /// the first one, which processes all in order. Collective over the replicas, after the forwards.
  /// `extent_of` returns a microbatch's extent. Throws PeerError and DataError.
  void collect_microbatches(std::int64_t from, std::int64_t to,
                            const std::function<BatchExtent(MicrobatchId)>& extent_of);
  /// Adds the heads' gradients for their inputs to the slot. Each is scaled by the microbatch's share in its
  /// step.
  void backward(LayerSlot& slot, const RunContext& context);

  /// Sums the sums over the replicas, in rank order.
  void reduce();
  /// Returns the sums of all heads of the model and resets them. Waits for the device.
  std::vector<double> take_sums();
  LossSums losses_of(std::span<const double> sums) const;
  LossSums take_losses() { return losses_of(take_sums()); }
  /// Returns by job whether a head's loss is NaN or Inf; empty in a stage without heads.
  std::vector<char> nonfinite_jobs();
  /// Returns where the loss of a single job was first not finite in this step. On a device the microbatch is
  /// unknown.
  const std::optional<NonfinitePlace>& first_nonfinite() const { return first_nonfinite_; }
  /// Throws NumericError if a head's loss is NaN or Inf in all jobs.
  void require_finite();

 private:
  std::vector<LossScale> scales_of(const HeadStep& head, MicrobatchId microbatch, const RunContext& context);
  void collect();
  void note_nonfinite(const HeadStep& head, std::optional<MicrobatchId> microbatch);
  void add_collected(std::size_t head, std::span<const at::Tensor> inputs);
  std::vector<at::Tensor> receive_inputs(int head, RankId from, std::uint64_t tag, const BatchExtent& extent);

  const StageProgram& program_;
  const StageLayout& layout_;
  const LayerRunner& layers_;
  Communicator* replicas_;
  int microbatches_per_update_;
  /// by head; null: the head evaluates each microbatch separately
  std::vector<std::unique_ptr<Collector>> collectors_;
  /// by head: its inputs of microbatches that are not collected yet; only with replicas
  std::vector<std::map<std::int64_t, std::vector<at::Tensor>>> uncollected_;
  std::vector<double> sums_;
  std::optional<NonfinitePlace> first_nonfinite_;
  at::Tensor sums_on_device_;  ///< [num_sums] float64, not yet in sums_; undefined: none
  std::pair<std::int64_t, BatchExtent> step_total_{-1, {}};  ///< first position of a step, sums over it
};

}  // namespace millrace
