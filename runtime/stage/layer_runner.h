// Runs the layers of a compiled stage on one microbatch: forward, and backward in one or two parts. The
// executor and the profiler use the same code.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/base/ids.h"
#include "runtime/model/stage_program.h"
#include "runtime/stage/carried_states.h"
#include "runtime/stage/finite_check.h"
#include "runtime/stage/gradient_reducer.h"
#include "runtime/stage/parameter_store.h"

namespace millrace {

/// The gradient that one reader of a tensor contributes.
struct GradientPart {
  int place;
  int use;  ///< the reader: index of a layer in the model, or number of layers + index of a head
  at::Tensor value;
};

/// The tensors of a microbatch between its first receive and its last backward. Vectors are indexed by place
/// (index in the stage's list of tensors) or by step.
struct LayerSlot {
  MicrobatchId microbatch{-1};
  std::vector<at::Tensor> values;
  std::vector<at::Tensor> gradients;
  std::vector<GradientPart> parts;  ///< the gradients of tensors marked in StageProgram::in_parts
  std::vector<Saved> saved;         ///< by step
  std::vector<at::Tensor> kept;     ///< the received tensors, if the stage recomputes
  CarriedTensors carried;           ///< the initial states of layers with CarriesState; empty: none
  CarriedTensors left;              ///< their final states
  std::vector<Saved> heads;         ///< by head
  /// by step; kept from the input gradient (I) to the weight gradient (W)
  std::vector<std::vector<at::Tensor>> output_gradients;
  bool through = false;  ///< its last backward is complete

  void clear();
};

/// An observer that is called around every layer; the profiler implements it.
class LayerObserver {
 public:
  enum class Phase { Forward, BackwardInput, BackwardWeight };
  virtual ~LayerObserver() = default;
  virtual void before(Phase phase, std::size_t step) = 0;
  virtual void after(Phase phase, std::size_t step) = 0;
};

/// Runs the layers of one stage. `program` and `store` must outlive it. Not thread-safe.
class LayerRunner {
 public:
  enum class Run { Evaluate, Train, TrainWithoutSaving, Again };

  LayerRunner(const StageProgram& program, ParameterStore& store, std::uint64_t seed)
      : LayerRunner(program, store, std::vector{seed}) {}
  /// `seeds` has one seed per job.
  LayerRunner(const StageProgram& program, ParameterStore& store, std::vector<std::uint64_t> seeds)
      : program_(program),
        store_(store),
        seeds_(std::move(seeds)),
        drawn_(seeds_.size()),
        begins_at_(seeds_.size()) {}

  void set_observer(LayerObserver* observer) { observer_ = observer; }
  /// Checks the results of layers with `check` from now on; null: no checks.
  void set_finite_check(FiniteCheck* check) { finite_ = check; }
  /// Makes layers with batch statistics compute them over all replicas (CallContext::replicas).
  void set_replicas(ReplicaSum* replicas) { replicas_ = replicas; }

  void set_masks(MasksFrom masks) { masks_ = masks; }
  /// Sets the position at which each job's own run starts. In training, a job's random draws depend on its
  /// own positions, counted from there.
  void set_begins(std::vector<std::int64_t> positions) { begins_at_ = std::move(positions); }

  /// Computes slot.values of the tensors that leave the stage from the received ones. Other tensors are freed
  /// after their last reader.
  void forward(LayerSlot& slot, std::int64_t position, VersionId version, Run run);
  /// Computes the gradients of the received tensors from slot.gradients and slot.parts of the tensors that
  /// leave the stage. Also adds the weight gradients, and calls `on_layer(step)` after each layer.
  template <class OnLayer>
  void backward(LayerSlot& slot, VersionId version, OnLayer&& on_layer);
  void backward_input(LayerSlot& slot, VersionId version);
  /// Runs the two parts of the backward, input and weight gradient, one after the other for each layer. The
  /// profiler uses it.
  void backward_layer_by_layer(LayerSlot& slot, VersionId version);
  template <class OnLayer>
  void backward_weight(LayerSlot& slot, OnLayer&& on_layer);

  /// Returns the tensors that a head reads. add_gradients() takes the head's gradients for them.
  std::vector<at::Tensor> inputs_of(const LayerSlot& slot, const HeadStep& head) const;
  void add_gradients(LayerSlot& slot, const HeadStep& head, std::vector<at::Tensor> grads) const;

  /// Adds one reader's gradient for the tensor at `place`. `use` is the reader (GradientPart).
  void add_gradient(LayerSlot& slot, int place, int use, at::Tensor value) const;

 private:
  std::span<at::Tensor> sums_for(std::size_t step, std::vector<at::Tensor>& own);
  void add_sums(std::size_t step, const std::vector<at::Tensor>& own);
  std::vector<at::Tensor> forward_carrying(LayerSlot& slot, std::size_t step,
                                           std::span<const at::Tensor> inputs, const CallContext& context,
                                           Saved* saved, VersionId version, Run run);
  at::Tensor take_gradient(LayerSlot& slot, int place) const;
  bool take_gradients(LayerSlot& slot, const LayerStep& step, std::vector<at::Tensor>& grads) const;
  void joint_step(LayerSlot& slot, VersionId version, std::size_t i);
  void input_step(LayerSlot& slot, VersionId version, std::size_t i);
  void weight_step(LayerSlot& slot, std::size_t i);
  void look_at(const LayerSlot& slot, const LayerStep& step, const std::vector<at::Tensor>& gradients,
               const std::vector<at::Tensor>& given) const;
  void spread(LayerSlot& slot, const LayerStep& step, std::vector<at::Tensor>& inputs) const;
  void before(LayerObserver::Phase phase, std::size_t step) {
    if (observer_) [[unlikely]]
      observer_->before(phase, step);
  }
  void after(LayerObserver::Phase phase, std::size_t step) {
    if (observer_) [[unlikely]]
      observer_->after(phase, step);
  }

  const StageProgram& program_;
  ParameterStore& store_;
  std::vector<std::uint64_t> seeds_, drawn_;  ///< by job; `drawn_` has the seeds of the current layer
  MasksFrom masks_ = MasksFrom::Device;
  std::vector<std::int64_t> begins_at_;
  LayerObserver* observer_ = nullptr;
  FiniteCheck* finite_ = nullptr;
  ReplicaSum* replicas_ = nullptr;
};

template <class OnLayer>
void LayerRunner::backward(LayerSlot& slot, VersionId version, OnLayer&& on_layer) {
  for (std::size_t i = program_.steps.size(); i-- > 0;) {
    joint_step(slot, version, i);
    on_layer(static_cast<int>(i));
  }
  slot.saved.clear();
}

template <class OnLayer>
void LayerRunner::backward_weight(LayerSlot& slot, OnLayer&& on_layer) {
  for (std::size_t i = program_.steps.size(); i-- > 0;) {
    weight_step(slot, i);
    on_layer(static_cast<int>(i));
  }
  slot.output_gradients.clear();
  slot.saved.clear();
}

}  // namespace millrace
