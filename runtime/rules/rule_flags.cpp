#include "runtime/rules/rule_flags.h"

#include <algorithm>

#include "runtime/base/json.h"
#include "runtime/rules/rule_table.h"

namespace millrace {
namespace {

constexpr char kRules[] = "Update rule";
constexpr char kRates[] = "Learning rate";
constexpr char kPrecision[] = "Precision";
constexpr std::int64_t kMostSteps = into::kAny / 1024;

/// Returns "sgd 0.9, rmsprop 0": the default of each rule that has the number.
std::string defaults_of(const RuleNumber& number) {
  std::string text;
  for (const RuleEntry& entry : rule_table()) {
    for (const auto& [flag, fallback] : entry.numbers) {
      if (flag == number.flag)
        text += (text.empty() ? "" : ", ") + to_string(entry.kind) + " " + shortest_text(fallback);
    }
  }
  return text;
}

std::string rules_with(const RuleSwitch& option) {
  std::string text;
  for (const RuleEntry& entry : rule_table()) {
    if (std::ranges::find(entry.switches, option.flag) != entry.switches.end())
      text += (text.empty() ? "" : ", ") + to_string(entry.kind);
  }
  return text;
}

/// Parses "bias,norm"; "none": no group.
Result<std::vector<ParameterGroup>> groups_from(const std::string& list) {
  if (list == "none") return std::vector<ParameterGroup>();
  std::vector<ParameterGroup> groups;
  if (const std::optional<Problem> wrong = into::choices(groups, "kind of parameter").read({list}))
    return *wrong;
  std::ranges::sort(groups);
  return groups;
}

std::string names_of_groups(const std::vector<ParameterGroup>& groups) {
  std::string names;
  for (const ParameterGroup group : groups) names += (names.empty() ? "" : ",") + to_string(group);
  return names.empty() ? "none" : names;
}

}  // namespace

std::string recorded_text(double value) {
  return Json(value).dump();
}

std::string recorded_text(const std::vector<std::int64_t>& values) {
  std::string text;
  for (const std::int64_t value : values) text += (text.empty() ? "" : "x") + std::to_string(value);
  return text;
}

LearningRateOptions in_steps(LearningRateOptions rate, const RateInEpochs& epochs,
                             std::int64_t steps_per_epoch) {
  if (epochs.warmup > 0) rate.warmup_steps = steps_per_epoch * epochs.warmup;
  if (epochs.step_size > 0) rate.step_size = steps_per_epoch * epochs.step_size;
  for (std::int64_t epoch : epochs.milestones) rate.milestones.push_back(steps_per_epoch * epoch);
  if (epochs.whole_epochs) rate.steps_per_epoch = steps_per_epoch;
  return rate;
}

Problems conflicts(const LearningRateOptions& rate, const RateInEpochs& epochs) {
  Problems problems;
  const auto either = [&](bool both, const char* one, const char* other) {
    if (both) problems.push_back({one, std::string("is given beside ") + other, "give one of them"});
  };
  either(epochs.step_size > 0 && rate.step_size > 0, "--lr-step-epochs", "--lr-step-size");
  either(epochs.warmup > 0 && rate.warmup_steps > 0, "--warmup-epochs", "--warmup-steps");
  either(epochs.warmup > 0 && rate.warmup_fraction > 0, "--warmup-epochs", "--warmup-fraction");
  either(!epochs.milestones.empty() && !rate.milestones.empty(), "--lr-milestone-epochs", "--lr-milestones");
  return problems;
}

std::vector<Flag> rule_flags(RuleOptions& rule, ClipOptions& clip) {
  const RuleOptions usual{.kind = rule.kind};
  std::vector<Flag> flags{flag(kRules, "rule", choices_of<UpdateRuleKind>(), "Update rule (docs/rules.md).",
                               into::choice(rule.kind, "update rule"))
                              .results(to_string(rule.kind))
                              .each_job()
                              .also_called("optimizer")};
  for (const RuleNumber& number : rule_numbers()) {
    const double value = value_of(rule, number.member);
    const bool always =
        number.flag == "weight-decay" || (number.flag == "momentum" && rule.kind == UpdateRuleKind::Sgd);
    flags.push_back(
        flag(kRules, std::string(number.flag), "F",
             std::string(number.help) + " Default: " + defaults_of(number) + ".",
             into::number(rule.*number.member, number.least, number.most))
            .results(always ? recorded_text(value) : unusual(value, value_of(usual, number.member)))
            .each_job());
  }
  for (const RuleSwitch& option : rule_switches()) {
    flags.push_back(flag(kRules, std::string(option.flag),
                         rules_with(option) + ": " + std::string(option.help), into::on(rule.*option.member))
                        .results(rule.*option.member ? "true" : ""));
  }
  const double norm = clip_norm_of(rule, clip);
  append(flags,
         {flag(kRules, "no-decay", "KINDS",
               "Parameters without weight decay, of weight, bias, norm, embedding; none: all decay. Default: "
               "bias,norm for lamb and lars, which do not scale their rate either, else none.",
               into::parsed(rule.no_decay, groups_from))
              .results(no_decay_of(rule) == no_decay_of(usual) ? "" : names_of_groups(no_decay_of(rule)))
              .each_job(),
          flag(kRules, "clip-norm", "F",
               "Greatest 2-norm of the gradient over all stages, after replicas are joined; 0: none. "
               "Default: 1 for lamb, else 0.",
               into::number(clip.norm, 0, 1e30))
              .results(unusual(norm, clip_norm_of(usual, {})))
              .each_job(),
          flag(kRules, "clip-scope", choices_of<ClipScope>(),
               "Whose norm --clip-norm means. stage: each stage's own, which depends on the plan; schedules "
               "without a flush have no other.",
               into::choice(clip.scope, "scope"))
              .results(norm > 0 && clip.scope != ClipScope::Model ? to_string(clip.scope) : ""),
          flag(kRules, "clip-value", "F", "Greatest absolute value of an element of the gradient; 0: none.",
               into::number(clip.value, 0, 1e30))
              .results(unusual(clip.value, 0))
              .each_job(),
          flag(kRules, "zero-1",
               "The replicas of a stage share the rule's state instead of keeping it each (ZeRO stage 1): "
               "less memory, the same bits.",
               into::on(rule.shard_state))
              .meetings()});
  return flags;
}

std::vector<Flag> precision_flags(Precision& precision, LossScaleOptions& scale) {
  const LossScaleOptions usual;
  const LossScaleKind kind = kind_of(precision, scale);
  const bool dynamic = kind.scaling == LossScaling::Dynamic;
  const auto of_dynamic = [&](double value, double usual_value) {
    return dynamic ? unusual(value, usual_value) : "";
  };
  return {flag(kPrecision, "precision", choices_of<Precision>(),
               "What matrix products, convolutions, attention and LSTMs compute in, and what goes between "
               "layers with it; weights and their updates stay float32 (docs/precision.md).",
               into::choice(precision, "precision"))
              .results(precision == Precision::Float32 ? "" : to_string(precision)),
          flag(kPrecision, "loss-scale", "none|dynamic|NUMBER",
               "Times the loss, and gradients divided by it again; steps whose gradient is not finite are "
               "skipped on all ranks. Default: dynamic for float16, else none.",
               into::parsed(scale.kind, loss_scale_from))
              .results(kind.scaling == kind_of(precision, usual).scaling ? "" : to_string(kind)),
          flag(kPrecision, "loss-scale-initial", "F", "Dynamic: the first scale.",
               into::number(scale.initial, 0, 1e30))
              .results(of_dynamic(scale.initial, usual.initial)),
          flag(kPrecision, "loss-scale-growth", "F",
               "Dynamic: factor after --loss-scale-growth-interval updates in a row.",
               into::number(scale.growth, 1, 1e6))
              .results(of_dynamic(scale.growth, usual.growth)),
          flag(kPrecision, "loss-scale-backoff", "F", "Dynamic: factor after a step that was skipped.",
               into::number(scale.backoff, 0, 1))
              .results(of_dynamic(scale.backoff, usual.backoff)),
          flag(kPrecision, "loss-scale-growth-interval", "N",
               "Dynamic: updates in a row after which the scale grows.",
               into::integer(scale.growth_interval, 1, kMostSteps))
              .results(of_dynamic(double(scale.growth_interval), double(usual.growth_interval)))};
}

std::vector<Flag> nonfinite_flags(NonfiniteOptions& nonfinite) {
  return {flag("Training", "on-nonfinite", choices_of<OnNonfinite>(),
               "When loss or gradient is NaN or infinite: end with exit code 6, leave the step out on all "
               "ranks, or go back to the newest checkpoint (docs/failures.md).",
               into::choice(nonfinite.on, "reaction"))
              .meetings()
              .needs_values(),
          flag("Training", "check-finite", choices_of<FiniteCheckOf>(),
               "What each step is judged by; gradients: also the whole model's; activations: also what each "
               "layer gives forward and backward, which names the first one that went wrong. skip and "
               "rollback judge by gradients at least.",
               into::choice(nonfinite.check, "kind of number"))
              .meetings()
              .needs_values()};
}

std::vector<Flag> rate_flags(LearningRateOptions& rate, RateInEpochs& epochs, bool& by_replicas) {
  const LearningRateOptions usual;
  const auto is = [&](auto... policies) { return ((rate.policy == policies) || ...); };
  const bool gnmt = is(RatePolicy::Gnmt);
  const auto of_gnmt = [&](double value, double usual_value) {
    return gnmt ? unusual(value, usual_value) : "";
  };
  std::vector<Flag> flags{
      flag(kRates, "lr", "F", "Base learning rate.", into::number(rate.base, 0, 1e6))
          .results(recorded_text(rate.base)),
      flag(kRates, "lr-policy", choices_of<RatePolicy>(), "How the rate changes (docs/rules.md).",
           into::choice(rate.policy, "policy"))
          .results(to_string(rate.policy)),
      flag(kRates, "warmup-steps", "N", "Steps in which the rate rises to --lr.",
           into::integer(rate.warmup_steps, 0, kMostSteps))
          .results(std::to_string(rate.warmup_steps)),
      flag(kRates, "warmup-epochs", "N", "The same in epochs; instead of --warmup-steps.",
           into::integer(epochs.warmup, 0, 1'000'000))
          .results(""),
      flag(kRates, "warmup-fraction", "F", "The same as a share of all steps; instead of --warmup-steps.",
           into::number(rate.warmup_fraction, 0, 1))
          .results(unusual(rate.warmup_fraction, usual.warmup_fraction)),
      flag(kRates, "warmup", choices_of<WarmUp>(),
           "How it rises: linear from 0, or exponential from a hundredth, as MLPerf's GNMT.",
           into::choice(rate.warmup, "warm-up"))
          .results(rate.warmup == usual.warmup ? "" : to_string(rate.warmup)),
      flag(kRates, "lr-step-size", "N", "Policy step: steps between reductions.",
           into::integer(rate.step_size, 0, kMostSteps))
          .results(is(RatePolicy::Step) ? std::to_string(rate.step_size) : ""),
      flag(kRates, "lr-step-epochs", "N", "The same in epochs; instead of --lr-step-size.",
           into::integer(epochs.step_size, 0, 1'000'000))
          .results(""),
      flag(kRates, "lr-milestones", "LIST",
           "Policy multistep: the rate is multiplied by --gamma at these: 1450,1490.",
           into::integers(rate.milestones, 1, kMostSteps))
          .results(recorded_text(rate.milestones)),
      flag(kRates, "lr-milestone-epochs", "LIST", "The same in epochs; instead of --lr-milestones.",
           into::integers(epochs.milestones, 1, kMostSteps))
          .results(""),
      flag(kRates, "gamma", "F", "Policies step, multistep, exponential and gnmt: factor.",
           into::number(rate.gamma, 0, 1))
          .results(is(RatePolicy::Step, RatePolicy::Exponential, RatePolicy::MultiStep, RatePolicy::Gnmt)
                       ? recorded_text(rate.gamma)
                       : ""),
      flag(kRates, "lr-power", "F", "Policy polynomial: power; 0.5 in NVIDIA's BERT.",
           into::number(rate.power, 0, 1e3))
          .results(unusual(rate.power, usual.power)),
      flag(kRates, "lr-end", "F", "Policies polynomial, cosine and linear: the last rate as a share of --lr.",
           into::number(rate.end, 0, 1))
          .results(unusual(rate.end, usual.end)),
      flag(kRates, "lr-remain", "F",
           "Policy gnmt: the rate stays for this share of all steps; over 1: until this step.",
           into::number(rate.remain, 0, 1e15))
          .results(of_gnmt(rate.remain, usual.remain)),
      flag(kRates, "lr-decay-interval", "N",
           "Policy gnmt: steps between reductions; 0: what is left, shared out over --lr-decays.",
           into::integer(rate.decay_interval, 0, kMostSteps))
          .results(of_gnmt(double(rate.decay_interval), double(usual.decay_interval))),
      flag(kRates, "lr-decays", "N", "Policy gnmt: reductions at most.",
           into::integer(rate.decays, 1, 1'000'000))
          .results(of_gnmt(double(rate.decays), double(usual.decays))),
      flag(kRates, "lr-count-from", "N",
           "Number of the first update in the formulas, 0 or 1; 1: NVIDIA's and MLPerf's BERT and GNMT. "
           "Without it policies count from 0 and warm-up from 1.",
           into::integer(rate.count_from, 0, 1))
          .results(rate.count_from ? std::to_string(*rate.count_from) : ""),
      flag(kRates, "lr-total-steps", "N",
           "Steps that policies and --warmup-fraction count with as all; 1: --steps. A run that is to go on "
           "later has the rates of the whole.",
           into::integer(rate.total_steps, 1, kMostSteps))
          .results(""),
      flag(kRates, "lr-after-warmup", "Policies count from the end of the warm-up instead of the first step.",
           into::on(rate.after_warmup))
          .results(unusual(rate.after_warmup, usual.after_warmup)),
      flag(kRates, "lr-decay-start", "STEP",
           "Policies polynomial, linear, exponential and cosine count from this step; until then the rate is "
           "--lr.",
           into::integer(rate.decay_start, 0, kMostSteps))
          .results(unusual(double(rate.decay_start), double(usual.decay_start))),
      flag(kRates, "lr-per-epoch",
           "The policy changes the rate from epoch to epoch only; warm-up at every step.",
           into::on(epochs.whole_epochs))
          .results(unusual(double(rate.steps_per_epoch), double(usual.steps_per_epoch))),
      flag(kRates, "lr-by-replicas",
           "pipedream: a stage's rate is --lr times its replicas / those of the first stage, as PipeDream "
           "has it.",
           into::on(by_replicas))
          .results(by_replicas ? "true" : ""),
  };
  for (Flag& flag : flags) flag.per_job = true;
  return flags;
}

}  // namespace millrace
