// The single description of update rules, clipping, learning rates and precision as settings: flags, keys of
// job files, and values recorded in checkpoints. LibTorch-free.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/flag.h"
#include "runtime/rules/nonfinite.h"
#include "runtime/rules/precision.h"
#include "runtime/rules/update_options.h"

namespace millrace {

/// Learning-rate lengths given in epochs, until the data defines the length of an epoch. 0 or empty: not
/// given.
struct RateInEpochs {
  std::int64_t warmup = 0;
  std::int64_t step_size = 0;
  std::vector<std::int64_t> milestones;
  bool whole_epochs = false;  ///< LearningRateOptions::steps_per_epoch
};
LearningRateOptions in_steps(LearningRateOptions rate, const RateInEpochs& epochs,
                             std::int64_t steps_per_epoch);
/// Returns an error for each length given both in steps and in epochs.
Problems conflicts(const LearningRateOptions& rate, const RateInEpochs& epochs);

/// Returns a number, or a list of them, as checkpoints record it: "0.1", "8x16".
std::string recorded_text(double value);
std::string recorded_text(const std::vector<std::int64_t>& values);

std::vector<Flag> rule_flags(RuleOptions& rule, ClipOptions& clip);
std::vector<Flag> precision_flags(Precision& precision, LossScaleOptions& scale);
std::vector<Flag> nonfinite_flags(NonfiniteOptions& nonfinite);
std::vector<Flag> rate_flags(LearningRateOptions& rate, RateInEpochs& epochs, bool& by_replicas);

}  // namespace millrace
