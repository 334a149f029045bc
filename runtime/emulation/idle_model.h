// A model that computes nothing.
#pragma once

#include "runtime/base/result.h"
#include "runtime/model/layered_model.h"

namespace millrace {

/// Returns `model` with the same layers, tensors, parameters and fields, whose layers take no time and
/// compute nothing; so do its turns. Its tensors are in the host's memory and hold anything; parameters begin
/// as they would. Sums of heads are zero. Problem: a layer carries states.
Result<LayeredModel> idle_model(LayeredModel model);

}  // namespace millrace
