// The single table of update rules: names, numbers with their defaults, state tensors. Flags, memory
// estimates, error checks, checkpoints and help use it. LibTorch-free.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/rules/update_options.h"

namespace millrace {

/// A numeric option of rules: its flag and its member in the options.
struct RuleNumber {
  std::string_view flag;  ///< "weight-decay"
  std::optional<double> RuleOptions::*member;
  double least, most;
  std::string_view help;
};
/// A boolean option of rules.
struct RuleSwitch {
  std::string_view flag;  ///< "nesterov"
  bool RuleOptions::*member;
  std::string_view help;
};
const std::vector<RuleNumber>& rule_numbers();
const std::vector<RuleSwitch>& rule_switches();

/// A state tensor as large as the parameters; saved in checkpoints as "rule/NAME/parameter".
struct RuleState {
  enum class When { Always, WithMomentum, Amsgrad, Centered, Averaged };
  std::string_view name;
  When when = When::Always;
};

struct RuleEntry {
  UpdateRuleKind kind;
  std::string_view summary;                                  ///< one line, with its source
  std::vector<std::pair<std::string_view, double>> numbers;  ///< flag, default
  std::vector<std::string_view> switches;                    ///< flags
  std::vector<RuleState> states;
  std::vector<ParameterGroup> no_decay;  ///< the default
  double clip_norm = 0;                  ///< the default; 0: none
};
const std::vector<RuleEntry>& rule_table();
const RuleEntry& entry_of(UpdateRuleKind kind);

/// Returns the given number, else the rule's default; 0 if the rule has no such number.
double value_of(const RuleOptions& options, std::optional<double> RuleOptions::*member);
std::vector<ParameterGroup> no_decay_of(const RuleOptions& options);
/// Returns the maximum gradient norm; 0: gradients are not clipped by norm.
double clip_norm_of(const RuleOptions& rule, const ClipOptions& clip);
/// Returns the names of the rule's state tensors with `options`.
std::vector<std::string_view> states_of(const RuleOptions& options);

/// Returns an error for each number or switch that the rule lacks, for values out of range, and for
/// meaningless combinations.
Problems validate(const RuleOptions& options);
Problems validate(const RuleOptions& rule, const ClipOptions& clip, bool asynchronous);

/// The tensors that a rule keeps in addition to weights and gradients, with a name for the planner: "sgd" 0,
/// "momentum" 1, "adam" 2, "adam+amsgrad" 3, ...
struct RuleMemory {
  std::string name;
  int tensors = 0;  ///< number of tensors as large as the parameters
};
std::vector<RuleMemory> rule_memories();

}  // namespace millrace
