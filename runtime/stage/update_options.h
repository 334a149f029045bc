// What an update rule and the learning rate's schedule are told. LibTorch-free.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "runtime/base/choices.h"

namespace millrace {

enum class UpdateRuleKind { Sgd, Adam };
constexpr auto names_of(UpdateRuleKind) {
  return std::to_array<std::string_view>({"sgd", "adam"});
}

struct RuleOptions {
  UpdateRuleKind kind = UpdateRuleKind::Sgd;
  double momentum = 0.9;
  double weight_decay = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
};

enum class RatePolicy { Constant, Step, Polynomial, Exponential };
constexpr auto names_of(RatePolicy) {
  return std::to_array<std::string_view>({"constant", "step", "polynomial", "exponential"});
}

struct LearningRateOptions {
  double base = 0.01;
  RatePolicy policy = RatePolicy::Constant;
  std::int64_t warmup_steps = 0;  ///< linear from base / warmup_steps
  std::int64_t total_steps = 1;   ///< polynomial, exponential: E
  std::int64_t step_size = 0;     ///< step: every this many steps ...
  double gamma = 0.1;             ///< ... times this (exponential: base x gamma^(step / total))
  double power = 2;               ///< polynomial: (1 - step / total)^power
};

}  // namespace millrace
