// The learning rate as a function of the step. LibTorch-free.
#pragma once

#include <cstdint>

#include "runtime/base/result.h"
#include "runtime/rules/update_options.h"

namespace millrace {

/// Returns the learning rate of step `step` (from 0). Pure.
///
/// Warm-up over w steps, then the policy at t of N:
///   linear       base (step + 1) / w                    exponential  base 0.01^((w - t) / w)
///   constant     base                                   step         base gamma^floor(t / size)
///   multistep    base gamma^(milestones <= t)           polynomial   end + (base - end) (1 - t / N)^power
///   exponential  base gamma^(t / N)                     linear       end + (base - end) (1 - t / N)
///   cosine       end + (base - end) (1 + cos(pi t / N)) / 2
///   gnmt         base to step r, then base gamma^(1 + floor((t - r) / interval)), at most gamma^decays
/// t = step; for an exponential warm-up it is step + 1. With count_from c, t = step + c for both, and warm-up
/// lasts while t < w. c = 1 is the count of NVIDIA and MLPerf (BERT, GNMT), c = 0 that of MLPerf's first
/// BERT. With after_warmup, t - w and N - w replace t and N. With decay_start s, t - s and N - s replace
/// them, and the base rate holds before s. Sources: PipeDream's drivers, MLPerf GNMT and BERT, NVIDIA's DLRM,
/// PyTorch.
double learning_rate(const LearningRateOptions& options, std::int64_t step);
Problems validate(const LearningRateOptions& options);

/// Returns whether the rate depends on the run's number of steps.
bool needs_total(const LearningRateOptions& options);

}  // namespace millrace
