// A model that computes nothing.
#pragma once

#include "runtime/model/layered_model.h"

namespace millrace {

/// Returns `model` with the same layers, tensors, parameters and fields, whose layers take no time and
/// compute nothing. This includes its turns. Its tensors are in host memory with arbitrary content;
/// parameters have their usual initial values. Layers that carry states carry tensors of the same shapes with
/// arbitrary content. Sums of heads are zero.
LayeredModel idle_model(LayeredModel model);

}  // namespace millrace
