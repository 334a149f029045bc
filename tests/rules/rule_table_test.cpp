#include "runtime/rules/rule_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "runtime/rules/averaging_trigger.h"

namespace millrace {
namespace {

TEST(RuleTable, HasEveryRuleAndKnowsEveryFlagThatItNames) {
  EXPECT_EQ(rule_table().size(), all_names<UpdateRuleKind>().size());
  for (const RuleEntry& entry : rule_table()) {
    for (const auto& [flag, fallback] : entry.numbers) {
      const auto number = std::ranges::find(rule_numbers(), flag, &RuleNumber::flag);
      ASSERT_NE(number, rule_numbers().end()) << flag;
      EXPECT_GE(fallback, number->least) << flag;
      EXPECT_LE(fallback, number->most) << flag;
    }
    for (std::string_view flag : entry.switches)
      EXPECT_NE(std::ranges::find(rule_switches(), flag, &RuleSwitch::flag), rule_switches().end()) << flag;
    EXPECT_TRUE(validate(RuleOptions{.kind = entry.kind}).empty()) << to_string(entry.kind);
  }
}

/// A number that a rule has not is refused, whatever its value, and the message says whose it is.
TEST(RuleTable, RefusesNumbersOfOtherRules) {
  for (const RuleEntry& entry : rule_table()) {
    for (const RuleNumber& number : rule_numbers()) {
      RuleOptions options{.kind = entry.kind};
      options.*number.member = number.least;
      const bool has = std::ranges::find(entry.numbers, number.flag,
                                         &std::pair<std::string_view, double>::first) != entry.numbers.end();
      const Problems problems = validate(options);
      ASSERT_EQ(problems.empty(), has) << to_string(entry.kind) << " " << number.flag;
      if (has) continue;
      EXPECT_EQ(problems[0].where, "--" + std::string(number.flag));
      EXPECT_NE(problems[0].hint.find(" it"), std::string::npos) << problems[0].hint;
    }
  }
}

/// Above the least of all but the newest two, of four or more; then never again. A loss that is not finite is
/// neither.
TEST(AveragingTrigger, BeginsWhereAwdLstmSwitches) {
  const auto begins_at = [](std::vector<double> losses) {
    AveragingTrigger trigger(2);
    for (std::size_t i = 0; i < losses.size(); ++i) {
      // A run that goes on knows no more than the state.
      AveragingTrigger resumed(2);
      resumed.set_state(trigger.state());
      if (trigger.evaluated(losses[i], 12 * std::int64_t(i), 10 * std::int64_t(i)) !=
          resumed.evaluated(losses[i], 12 * std::int64_t(i), 10 * std::int64_t(i)))
        return -2;
      if (trigger.state().from >= 0) {
        EXPECT_EQ(trigger.state().from, 10 * std::int64_t(i));
        EXPECT_EQ(trigger.state().evaluated, 12 * std::int64_t(i));
        EXPECT_FALSE(trigger.evaluated(1e9, 1000, 1000));
        return int(i);
      }
    }
    EXPECT_LE(trigger.state().losses.size(), 3u);
    return -1;
  };
  EXPECT_EQ(begins_at({5, 4, 3, 2, 1, 0}), -1);
  EXPECT_EQ(begins_at({1, 2, 3}), -1);         // too few
  EXPECT_EQ(begins_at({1, 2, 3, 4}), 3);       // above the first
  EXPECT_EQ(begins_at({3, 1, 2, 2.5, 2}), 4);  // 2 is above the 1 three before; 2.5 is not above 3
  EXPECT_EQ(begins_at({3, 2, 2, 2, 2}), -1);   // no value is above the one three before
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(begins_at({nan, 3, 2, nan, 4, 2.5}), 4);
  EXPECT_EQ(begins_at({nan, nan, nan, nan, nan}), -1);
}

TEST(RuleTable, StatesFollowTheOptions) {
  using Names = std::vector<std::string_view>;
  EXPECT_EQ(states_of({}), Names{"momentum_buffer"});
  EXPECT_EQ(states_of({.momentum = 0}), Names{});
  EXPECT_EQ(states_of({.kind = UpdateRuleKind::Adam, .amsgrad = true}),
            (Names{"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}));
  EXPECT_EQ(states_of({.kind = UpdateRuleKind::RmsProp, .momentum = 0.5, .centered = true}),
            (Names{"square_avg", "momentum_buffer", "grad_avg"}));
}

TEST(RuleTable, ThePlannersNamesCountTheStates) {
  const auto tensors = [](const std::string& name) {
    const auto memories = rule_memories();
    const auto found = std::ranges::find(memories, name, &RuleMemory::name);
    return found == memories.end() ? -1 : found->tensors;
  };
  EXPECT_EQ(tensors("sgd"), 0);
  EXPECT_EQ(tensors("momentum"), 1);
  EXPECT_EQ(tensors("adam"), 2);
  EXPECT_EQ(tensors("adamw+amsgrad"), 3);
  EXPECT_EQ(tensors("rmsprop"), 1);
  EXPECT_EQ(tensors("rmsprop+centered+momentum"), 3);
  for (const RuleMemory& memory : rule_memories()) {
    if (const auto kind = value_named<UpdateRuleKind>(memory.name); kind && *kind != UpdateRuleKind::Sgd) {
      EXPECT_EQ(memory.tensors, int(states_of({.kind = *kind}).size())) << memory.name;
    }
  }
}

TEST(RuleTable, AModelsNormNeedsAFlush) {
  const ClipOptions clip{.norm = 1.0};
  EXPECT_TRUE(validate({}, clip, false).empty());
  ASSERT_EQ(validate({}, clip, true).size(), 1u);
  EXPECT_EQ(validate({}, clip, true)[0].where, "--clip-norm");
  EXPECT_TRUE(validate({}, {.norm = 1.0, .scope = ClipScope::Stage}, true).empty());
  EXPECT_TRUE(validate({}, {.value = 1}, true).empty());
  // Lamb clips unless it is told not to.
  const RuleOptions lamb{.kind = UpdateRuleKind::Lamb};
  EXPECT_EQ(clip_norm_of(lamb, {}), 1);
  EXPECT_EQ(validate(lamb, {}, true).size(), 1u);
  EXPECT_TRUE(validate(lamb, {.norm = 0.0}, true).empty());
  EXPECT_EQ(validate({}, {.norm = 1.0, .value = 1}, false).size(), 1u);
}

TEST(RuleTable, NesterovNeedsMomentum) {
  EXPECT_TRUE(validate(RuleOptions{.nesterov = true}).empty());
  EXPECT_EQ(validate(RuleOptions{.momentum = 0, .nesterov = true}).size(), 1u);
  EXPECT_EQ(validate(RuleOptions{.dampening = 0.5, .nesterov = true}).size(), 1u);
}

}  // namespace
}  // namespace millrace
