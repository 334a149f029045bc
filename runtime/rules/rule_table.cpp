#include "runtime/rules/rule_table.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/check.h"
#include "runtime/base/json.h"

namespace millrace {
namespace {

using Kind = UpdateRuleKind;
using When = RuleState::When;

bool has_number(const RuleEntry& entry, std::string_view flag) {
  return std::ranges::find(entry.numbers, flag, &std::pair<std::string_view, double>::first) !=
         entry.numbers.end();
}

bool has_switch(const RuleEntry& entry, std::string_view flag) {
  return std::ranges::find(entry.switches, flag) != entry.switches.end();
}

/// Returns "sgd, rmsprop": the rules for which `has` is true.
template <class Has>
std::string rules_with(Has has) {
  std::string names;
  for (const RuleEntry& entry : rule_table()) {
    if (has(entry)) names += (names.empty() ? "" : ", ") + to_string(entry.kind);
  }
  return names;
}

std::string text_of(double value) {
  return Json(value).dump();
}

}  // namespace

const std::vector<RuleNumber>& rule_numbers() {
  static const std::vector<RuleNumber> numbers{
      {"momentum", &RuleOptions::momentum, 0, 1, "Momentum."},
      {"dampening", &RuleOptions::dampening, 0, 1, "Share of the gradient that momentum leaves out."},
      {"weight-decay", &RuleOptions::weight_decay, 0, 1e3,
       "Weight decay: added to the gradient (L2); adamw, lamb: to the step."},
      {"beta1", &RuleOptions::beta1, 0, 0.9999999, "Decay of the mean of gradients."},
      {"beta2", &RuleOptions::beta2, 0, 0.9999999, "Decay of the mean of their squares."},
      {"epsilon", &RuleOptions::epsilon, 0, 1e3, "Added to denominators."},
      {"rho", &RuleOptions::rho, 0, 0.9999999, "Decay of both means."},
      {"alpha", &RuleOptions::alpha, 0, 10,
       "rmsprop: decay of the mean of squares; asgd: power of the rate."},
      {"trust", &RuleOptions::trust, 0, 1e3, "Trust coefficient of the layer-wise rate."},
      {"lambd", &RuleOptions::lambd, 0, 1e3, "Decay of weights and rate."},
      {"average-start", &RuleOptions::average_start, 0, 1e15, "Updates before weights are averaged."},
      {"nonmonotone", &RuleOptions::nonmonotone, 0, 1e6,
       "NT-ASGD: plain descent until the loss of an evaluation is above the least of all but the newest N "
       "before it, then the average from there; 0: from the start."},
      {"ema", &RuleOptions::ema, 0, 0.9999999,
       "Decay of the exponential moving average of the weights, which evaluations and --save-weights use; "
       "0: none (docs/rules.md)."},
  };
  return numbers;
}

const std::vector<RuleSwitch>& rule_switches() {
  static const std::vector<RuleSwitch> switches{
      {"nesterov", &RuleOptions::nesterov, "Nesterov's momentum."},
      {"amsgrad", &RuleOptions::amsgrad, "Divide by the greatest mean of squares so far."},
      {"centered", &RuleOptions::centered, "Divide by the variance instead of the mean of squares."},
      {"nvlamb", &RuleOptions::nvlamb, "Layer-wise rate for parameters without decay, too."},
  };
  return switches;
}

const std::vector<RuleEntry>& rule_table() {
  static const std::vector<RuleEntry> table{
      {.kind = Kind::Sgd,
       .summary = "gradient descent with momentum",
       .numbers = {{"momentum", 0.9}, {"dampening", 0}, {"weight-decay", 0}, {"ema", 0}},
       .switches = {"nesterov"},
       .states = {{"momentum_buffer", When::WithMomentum}, {"ema", When::Averaged}}},
      {.kind = Kind::Adam,
       .summary = "Adam (arXiv 1412.6980), decay in the gradient",
       .numbers = {{"beta1", 0.9}, {"beta2", 0.999}, {"epsilon", 1e-8}, {"weight-decay", 0}, {"ema", 0}},
       .switches = {"amsgrad"},
       .states = {{"exp_avg"}, {"exp_avg_sq"}, {"max_exp_avg_sq", When::Amsgrad}, {"ema", When::Averaged}}},
      {.kind = Kind::AdamW,
       .summary = "Adam with decoupled decay (arXiv 1711.05101)",
       .numbers = {{"beta1", 0.9}, {"beta2", 0.999}, {"epsilon", 1e-8}, {"weight-decay", 0.01}, {"ema", 0}},
       .switches = {"amsgrad"},
       .states = {{"exp_avg"}, {"exp_avg_sq"}, {"max_exp_avg_sq", When::Amsgrad}, {"ema", When::Averaged}}},
      {.kind = Kind::Lamb,
       .summary = "Adam with a layer-wise rate (arXiv 1904.00962)",
       .numbers = {{"beta1", 0.9}, {"beta2", 0.999}, {"epsilon", 1e-6}, {"weight-decay", 0.01}, {"ema", 0}},
       .switches = {"nvlamb"},
       .states = {{"exp_avg"}, {"exp_avg_sq"}, {"ema", When::Averaged}},
       .no_decay = {ParameterGroup::Bias, ParameterGroup::Norm},
       .clip_norm = 1},
      {.kind = Kind::Lars,
       .summary = "momentum with a layer-wise rate (arXiv 1708.03888)",
       .numbers = {{"momentum", 0.9}, {"trust", 0.001}, {"epsilon", 0}, {"weight-decay", 1e-4}, {"ema", 0}},
       .switches = {},
       .states = {{"momentum_buffer"}, {"ema", When::Averaged}},
       .no_decay = {ParameterGroup::Bias, ParameterGroup::Norm}},
      {.kind = Kind::Adadelta,
       .summary = "Adadelta (arXiv 1212.5701); usual --lr 1",
       .numbers = {{"rho", 0.9}, {"epsilon", 1e-6}, {"weight-decay", 0}, {"ema", 0}},
       .switches = {},
       .states = {{"square_avg"}, {"acc_delta"}, {"ema", When::Averaged}}},
      {.kind = Kind::RmsProp,
       .summary = "RMSprop (arXiv 1308.0850 when centered)",
       .numbers = {{"alpha", 0.99}, {"epsilon", 1e-8}, {"momentum", 0}, {"weight-decay", 0}, {"ema", 0}},
       .switches = {"centered"},
       .states = {{"square_avg"},
                  {"momentum_buffer", When::WithMomentum},
                  {"grad_avg", When::Centered},
                  {"ema", When::Averaged}}},
      {.kind = Kind::Asgd,
       .summary = "averaged gradient descent (Polyak, Juditsky 1992); evaluates the average",
       .numbers = {{"lambd", 1e-4},
                   {"alpha", 0.75},
                   {"average-start", 1e6},
                   {"nonmonotone", 0},
                   {"weight-decay", 0}},
       .switches = {},
       .states = {{"ax"}}},
  };
  return table;
}

const RuleEntry& entry_of(UpdateRuleKind kind) {
  const auto found = std::ranges::find(rule_table(), kind, &RuleEntry::kind);
  MILLRACE_CHECK(found != rule_table().end());
  return *found;
}

double value_of(const RuleOptions& options, std::optional<double> RuleOptions::*member) {
  if (options.*member) return *(options.*member);
  const auto number = std::ranges::find(rule_numbers(), member, &RuleNumber::member);
  for (const auto& [flag, fallback] : entry_of(options.kind).numbers) {
    if (flag == number->flag) return fallback;
  }
  return 0;
}

std::vector<ParameterGroup> no_decay_of(const RuleOptions& options) {
  return options.no_decay ? *options.no_decay : entry_of(options.kind).no_decay;
}

double clip_norm_of(const RuleOptions& rule, const ClipOptions& clip) {
  if (clip.norm) return *clip.norm;
  return clip.value > 0 ? 0 : entry_of(rule.kind).clip_norm;
}

std::vector<std::string_view> states_of(const RuleOptions& options) {
  std::vector<std::string_view> names;
  for (const RuleState& state : entry_of(options.kind).states) {
    const bool there = state.when == When::Always ||
                       (state.when == When::WithMomentum && value_of(options, &RuleOptions::momentum) != 0) ||
                       (state.when == When::Amsgrad && options.amsgrad) ||
                       (state.when == When::Centered && options.centered) ||
                       (state.when == When::Averaged && value_of(options, &RuleOptions::ema) > 0);
    if (there) names.push_back(state.name);
  }
  return names;
}

Problems validate(const RuleOptions& options) {
  Problems problems;
  const RuleEntry& entry = entry_of(options.kind);
  const auto refuse = [&](std::string_view flag, const std::string& others) {
    problems.push_back(
        {"--" + std::string(flag), "rule " + to_string(options.kind) + " has no such setting",
         "leave it out; " + others + (others.find(',') == std::string::npos ? " has it" : " have it")});
  };
  for (const RuleNumber& number : rule_numbers()) {
    const std::optional<double>& given = options.*number.member;
    if (!given) continue;
    if (!has_number(entry, number.flag)) {
      refuse(number.flag, rules_with([&](const RuleEntry& e) { return has_number(e, number.flag); }));
    } else if (!(*given >= number.least && *given <= number.most)) {
      problems.push_back({"--" + std::string(number.flag),
                          "is " + text_of(*given) + ", must be from " + text_of(number.least) + " to " +
                              text_of(number.most),
                          ""});
    }
  }
  for (const RuleSwitch& option : rule_switches()) {
    if (options.*option.member && !has_switch(entry, option.flag))
      refuse(option.flag, rules_with([&](const RuleEntry& e) { return has_switch(e, option.flag); }));
  }
  if (const double evaluations = value_of(options, &RuleOptions::nonmonotone);
      evaluations != std::floor(evaluations))
    problems.push_back(
        {"--nonmonotone", "is " + text_of(evaluations) + ", a number of evaluations is whole", {}});
  if (options.nesterov &&
      (value_of(options, &RuleOptions::momentum) == 0 || value_of(options, &RuleOptions::dampening) != 0))
    problems.push_back({"--nesterov", "needs momentum, and no dampening",
                        "give --momentum above 0 and leave --dampening out"});
  return problems;
}

Problems validate(const RuleOptions& rule, const ClipOptions& clip, bool asynchronous) {
  Problems problems;
  if (clip.norm && !(*clip.norm >= 0))
    problems.push_back(
        {"--clip-norm", "is " + text_of(*clip.norm) + ", must be at least 0", "0: no clipping"});
  if (!(clip.value >= 0))
    problems.push_back(
        {"--clip-value", "is " + text_of(clip.value) + ", must be at least 0", "0: no clipping"});
  const double norm = clip_norm_of(rule, clip);
  if (norm > 0 && clip.value > 0)
    problems.push_back({"--clip-value", "is given beside --clip-norm", "give one of them"});
  if (norm > 0 && clip.scope == ClipScope::Model && asynchronous)
    problems.push_back(
        {"--clip-norm",
         std::string(clip.norm ? "" : "rule " + to_string(rule.kind) + " clips to " + text_of(norm) + ": ") +
             "without a flush the stages update at different times and have no common norm",
         "give --clip-scope stage (each stage's own norm), --clip-value, --clip-norm 0, or a schedule that "
         "flushes"});
  if (value_of(rule, &RuleOptions::nonmonotone) > 0 && asynchronous)
    problems.push_back({"--nonmonotone",
                        "without a flush the stages update at different times and cannot begin together",
                        "use a schedule that flushes, for example --schedule 1f1b"});
  return problems;
}

std::vector<RuleMemory> rule_memories() {
  std::vector<RuleMemory> memories;
  for (const RuleEntry& entry : rule_table()) {
    const auto always = static_cast<int>(std::ranges::count(entry.states, When::Always, &RuleState::when));
    const std::string name = to_string(entry.kind);
    memories.push_back({name, always});
    for (const RuleState& state : entry.states) {
      if (state.when == When::WithMomentum)
        memories.push_back({entry.kind == Kind::Sgd ? "momentum" : name + "+momentum", always + 1});
      if (state.when == When::Amsgrad) memories.push_back({name + "+amsgrad", always + 1});
      if (state.when == When::Centered) {
        memories.push_back({name + "+centered", always + 1});
        memories.push_back({name + "+centered+momentum", always + 2});
      }
    }
  }
  return memories;
}

}  // namespace millrace
