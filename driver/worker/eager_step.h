// The step that eager PyTorch took of an exported model, beside the one that the archive's graph takes.
#pragma once

#include <string>

#include "runtime/base/result.h"
#include "runtime/plan/model_options.h"

namespace millrace {

/// Repeats the step that the archive `model` holds (kEagerStep): the loss of its example inputs, and the
/// gradient of each parameter. It computes on the CPU, with dropout off, and holds the whole model there. Ok
/// where `model` is no archive or holds no step. Problem: the first parameter whose gradient differs, an
/// archive that cannot be read. With --eager-difference warn among `options` it logs the problem instead.
Status check_eager_step(const std::string& model, const GivenOptions& options);

}  // namespace millrace
