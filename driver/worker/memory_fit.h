// Whether the weights of a process fit into the memory of its host, before any of them is allocated.
#pragma once

#include <span>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/base/units.h"
#include "runtime/model/layered_model.h"
#include "runtime/plan/plan.h"

namespace millrace {

/// Returns a Problem if the weights of `ranks` of the plan, and as many bytes of gradients, are more than
/// `available` bytes. It names the largest parameters with their sizes. `networks` are all arrays of the run.
/// Rule state and activations come on top, so weights that fit may still be too many. 0 available: unknown.
Status weights_fit(std::span<const LayeredModel> networks, const Plan& plan, const std::vector<int>& ranks,
                   Bytes available);

}  // namespace millrace
