// Replaces chains of calls by single operators of PyTorch that compute the same.
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
/// It does so only if no other call reads the values in between, and none writes to them. `result` is the
/// value that the program computes.
void fuse_calls(FlatProgram& program, const std::string& result, const std::set<std::string>& differentiable);

}  // namespace millrace
