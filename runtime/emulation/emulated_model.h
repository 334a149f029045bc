// A model whose layers compute nothing: they only take the time and the memory that a profile says, on the
// emulated device of the thread that calls them.
#pragma once

#include "runtime/base/result.h"
#include "runtime/model/layered_model.h"
#include "runtime/plan/layer_graph.h"
#include "runtime/plan/plan.h"

namespace millrace {

/// Returns `model` with the same layers, tensors, parameters and fields, to be run on an EmulatedDevice. Each
/// call of a layer hands the device the seconds of its layer in `profile`, and takes the memory that its
/// layer keeps and works with, in the stages of `plan`; each loss hands it LayerGraph::loss_s. Sums of heads
/// are zero: a run has no losses. Where microbatches differ in length, each takes the times that the
/// profile's microbatches say for the size of what the layer makes of it (TimesBySize). A model that is
/// trained in turns takes those of LayerGraph::turns. A job array takes the profile of an array of as many
/// jobs (profile_of_array). Problem: the profile is of another model, of other turns, of another number of
/// jobs, or its layers are others, or differ in the bytes of parameters or outputs (where microbatches have
/// one length).
Result<LayeredModel> emulated_model(LayeredModel model, const LayerGraph& profile, const Plan& plan);

}  // namespace millrace
