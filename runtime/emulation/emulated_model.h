// A model whose layers compute nothing: they only take the time and the memory that a profile says, on the
// emulated device of the thread that calls them.
#pragma once

#include "runtime/base/result.h"
#include "runtime/model/layered_model.h"
#include "runtime/plan/layer_graph.h"

namespace millrace {

/// Returns `model` with the same layers, tensors, parameters and fields, to be run on an EmulatedDevice. Each
/// call of a layer hands the device the seconds of its layer in `profile`; each loss hands it
/// LayerGraph::loss_s. Sums of heads are zero: a run has no losses. Times of models whose microbatches differ
/// in length are their means.
/// Problem: the profile is of another model, or lacks a layer; the model is trained in turns; a layer carries
/// states from microbatch to microbatch.
Result<LayeredModel> emulated_model(LayeredModel model, const LayerGraph& profile);

/// Returns `model` with the same layers, tensors, parameters and fields, whose layers take no time and
/// compute nothing. Its tensors are in the host's memory and hold anything; parameters begin as they would.
/// Sums of heads are zero. Problem: the model is trained in turns; a layer carries states.
Result<LayeredModel> idle_model(LayeredModel model);

}  // namespace millrace
