// Initial values of parameters. They depend only on (seed, parameter name), or are given by the
// ParameterSpec.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/layers/layer.h"

namespace millrace {

/// Returns one tensor for each spec, in order: on the CPU, float32 (counters: int64).
std::vector<at::Tensor> initialise(const std::vector<ParameterSpec>& specs, std::uint64_t seed,
                                   const std::string& layer_name);

}  // namespace millrace
