// The options of update rules, clipping and the learning-rate schedule. LibTorch-free.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "runtime/base/choices.h"

namespace millrace {

enum class UpdateRuleKind { Sgd, Adam, AdamW, Lamb, Lars, Adadelta, RmsProp, Asgd };
constexpr auto names_of(UpdateRuleKind) {
  return std::to_array<std::string_view>(
      {"sgd", "adam", "adamw", "lamb", "lars", "adadelta", "rmsprop", "asgd"});
}

/// Groups of parameters: ParameterKind in runtime/layers, for code that does not include layers.
enum class ParameterGroup { Weight, Bias, Norm, Embedding };
constexpr auto names_of(ParameterGroup) {
  return std::to_array<std::string_view>({"weight", "bias", "norm", "embedding"});
}

/// A rule and its numbers. Absent numbers have the rule's defaults (rule_table.h); read them with `value_of`.
struct RuleOptions {
  UpdateRuleKind kind = UpdateRuleKind::Sgd;
  std::optional<double> momentum, dampening, weight_decay, beta1, beta2, epsilon, rho, alpha, trust, lambd,
      average_start, nonmonotone, ema;
  bool nesterov = false, amsgrad = false, centered = false, nvlamb = false;
  /// Parameters without weight decay; lamb and lars do not scale their rate either.
  std::optional<std::vector<ParameterGroup>> no_decay;
  bool shard_state = false;  ///< ZeRO-1: the replicas of a stage shard the rule's state
};

enum class ClipScope {
  Model,  ///< the norm over all stages: every plan gives the same result
  Stage,  ///< each stage's own norm: needs no exchange, but depends on the plan
};
constexpr auto names_of(ClipScope) {
  return std::to_array<std::string_view>({"model", "stage"});
}

/// Changes to gradients before the rule receives them.
struct ClipOptions {
  std::optional<double> norm;  ///< maximum 2-norm; 0: none; absent: the rule's default (lamb 1, others none)
  double value = 0;            ///< maximum absolute value of an element; 0: none
  ClipScope scope = ClipScope::Model;
};

enum class RatePolicy { Constant, Step, Polynomial, Exponential, MultiStep, Cosine, Linear, Gnmt };
constexpr auto names_of(RatePolicy) {
  return std::to_array<std::string_view>(
      {"constant", "step", "polynomial", "exponential", "multistep", "cosine", "linear", "gnmt"});
}

enum class WarmUp { Linear, Exponential };
constexpr auto names_of(WarmUp) {
  return std::to_array<std::string_view>({"linear", "exponential"});
}

/// Counts are steps of the job, from 0; learning_rate.h has the formulas.
struct LearningRateOptions {
  double base = 0.01;
  RatePolicy policy = RatePolicy::Constant;
  std::int64_t warmup_steps = 0;
  double warmup_fraction = 0;  ///< share of total_steps, instead of warmup_steps
  WarmUp warmup = WarmUp::Linear;
  std::int64_t total_steps = 1;  ///< N in polynomial, exponential, cosine, linear, gnmt
  std::int64_t step_size = 0;    ///< step: the interval between two decays
  /// step: the factor of each decay (exponential: base x gamma^(step / N))
  double gamma = 0.1;
  double power = 2;                        ///< polynomial
  double end = 0;                          ///< polynomial, cosine, linear: final rate, as a share of the base
  std::vector<std::int64_t> milestones;    ///< multistep, ascending
  double remain = 0.666;                   ///< gnmt: constant up to this share of N; above 1: up to this step
  std::int64_t decay_interval = 0;         ///< gnmt: 0: (N - remain) / decays
  std::int64_t decays = 4;                 ///< gnmt: maximum number of decays
  std::optional<std::int64_t> count_from;  ///< number of the first update, 0 or 1
  bool after_warmup = false;               ///< policies count from the end of the warm-up
  std::int64_t decay_start = 0;            ///< policies count from this step; the base rate holds before it
  std::int64_t steps_per_epoch = 0;        ///< policies see whole epochs of this length; 0: every step
};

}  // namespace millrace
