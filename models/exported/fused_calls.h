// Chains of calls for which PyTorch has one operator, as models write them out.
#pragma once

#include <set>
#include <string>

#include "models/exported/flat_program.h"

namespace millrace {

/// Replaces by one call each, the same but for rounding:
/// - GELU by tanh written out, 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), as transformers' NewGELU;
/// - attention of [B, H, L, D] written out, softmax(q k' scale + mask) v, where nothing is dropped and the
/// mask
///   is not `differentiable`.
/// Only where nobody else reads what stands between, and nothing of it is written to. `result`: what the
/// program is for.
void fuse_calls(FlatProgram& program, const std::string& result, const std::set<std::string>& differentiable);

}  // namespace millrace
