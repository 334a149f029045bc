// Initial values: a function of (seed, parameter name) only, or what the description holds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/layers/layer.h"

namespace millrace {

/// One tensor for each spec, in order; CPU, float32 (counters: int64).
std::vector<at::Tensor> initialise(const std::vector<ParameterSpec>& specs, std::uint64_t seed,
                                   const std::string& layer_name);

}  // namespace millrace
