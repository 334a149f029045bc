// A model whose layers compute nothing. They only take the time and the memory that a profile specifies, on
// the calling thread's emulated device.
#pragma once

#include "runtime/base/result.h"
#include "runtime/model/layered_model.h"
#include "runtime/plan/layer_graph.h"
#include "runtime/plan/plan.h"

namespace millrace {

/// Returns `model` with the same layers, tensors, parameters and fields, to be run on an EmulatedDevice. Each
/// call of a layer issues the layer's seconds in `profile` to the device. It allocates the memory that the
/// layer keeps and works with, in the stages of `plan`. Each loss issues LayerGraph::loss_s. Sums of heads
/// are zero: a run has no losses.
/// If microbatches differ in length, the times of a layer are those that the profile's microbatches give for
/// the size of its outputs (TimesBySize). A model trained in turns uses LayerGraph::turns. A job array uses
/// the profile of an array with as many jobs (profile_of_array).
/// Returns an error if the profile is of another model, of other turns or of another number of jobs. Returns
/// an error if its layers differ, or differ in the bytes of parameters or outputs (if microbatches have one
/// length).
Result<LayeredModel> emulated_model(LayeredModel model, const LayerGraph& profile, const Plan& plan);

}  // namespace millrace
