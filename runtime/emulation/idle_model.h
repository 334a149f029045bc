// A model that computes nothing.
#pragma once

#include "runtime/model/layered_model.h"

namespace millrace {

/// Returns `model` with the same layers, tensors, parameters and fields, whose layers take no time and
/// compute nothing; so do its turns. Its tensors are in the host's memory and hold anything; parameters begin
/// as they would. Layers that carry states carry such ones of the same shapes. Sums of heads are zero.
LayeredModel idle_model(LayeredModel model);

}  // namespace millrace
