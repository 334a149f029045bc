// The one description of the settings of `train`: what each decides, and what checkpoints record of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "driver/flags/job_lists.h"
#include "driver/flags/train_flags.h"

namespace millrace {
namespace {

using Words = std::vector<std::string>;
using Recorded = std::map<std::string, std::string>;

/// What a checkpoint of a run with these flags records of them.
Recorded recorded_by(const Words& words) {
  TrainFlags flags;
  const auto given = parse_arguments(train_spec(flags), words);
  EXPECT_TRUE(given && given->problems().empty()) << (words.empty() ? "" : words.back()) << ": "
                                                  << to_string(given ? given->problems() : given.problems());
  Recorded all;
  for (const auto& [name, value] : recorded(flags_of(flags))) all[name] = value;
  return all;
}

/// A value that differs from the default.
std::string other_value_of(const Flag& flag) {
  static const std::map<std::string, std::string> by_name{
      {"loss-scale", "16"},       {"warmup-fraction", "0.25"},
      {"no-decay", "weight"},     {"augment", "random-horizontal-flip"},
      {"lr-milestones", "3,4"},   {"loss-scale-backoff", "0.25"},
      {"loss-scale-growth", "4"}, {"lr-count-from", "1"}};
  if (const auto named = by_name.find(flag.name); named != by_name.end()) return named->second;
  if (!flag.target.names.empty())
    return flag.target.names.back() == flag.target.fallback ? flag.target.names.front()
                                                            : flag.target.names.back();
  return flag.value == "F" ? "0.75" : "7";
}

TEST(Settings, EachFlagOfTrainSpecifiesWhatItDecides) {
  for (const Flag& flag : train_spec().flags) EXPECT_TRUE(flag.decides) << "--" << flag.name;
}

TEST(Settings, CheckpointsRecordWhatDecidesResults) {
  // Recorded by the data set, by the worker or under another name: tests of the worker change these.
  const std::set<std::string> elsewhere{"model",
                                        "data",
                                        "holdout",
                                        "class-weights",
                                        "no-evaluation",
                                        "epochs",
                                        "fused",
                                        "jobs",
                                        "init-from-ignore",
                                        "lr-by-length",
                                        "variant",
                                        "variant-from",
                                        "variant-beyond",
                                        "warmup-epochs",
                                        "lr-step-epochs",
                                        "lr-per-epoch",
                                        "lr-milestone-epochs",
                                        "lr-total-steps",
                                        "bleu-every",
                                        "bleu-source",
                                        "bleu-reference",
                                        "bleu-translate",
                                        "bleu-lower-case",
                                        "target-bleu"};
  const std::vector<Words> runs{{},
                                {"--lr-policy", "step"},
                                {"--lr-policy", "gnmt"},
                                {"--precision", "float16"},
                                {"--clip-norm", "1"},
                                {"--rule", "adam"}};
  for (const Flag& flag : train_spec().flags) {
    if (flag.decides != Decides::Results || elsewhere.contains(flag.name)) {
      EXPECT_TRUE(flag.recorded.empty()) << "--" << flag.name;
      continue;
    }
    const bool shown = std::ranges::any_of(runs, [&](const Words& run) {
      if (std::ranges::find(run, "--" + flag.name) != run.end()) return false;
      Words with = run;
      with.push_back("--" + flag.name);
      if (!flag.value.empty()) with.push_back(other_value_of(flag));
      const Recorded before = recorded_by(run), after = recorded_by(with);
      const auto now = after.find(flag.name), then = before.find(flag.name);
      return now != after.end() && (then == before.end() || then->second != now->second);
    });
    EXPECT_TRUE(shown) << "--" << flag.name;
  }
}

TEST(Settings, NumbersAreRecordedAsCheckpointsAlwaysHad) {
  const Recorded usual = recorded_by({"--seed", "3"});
  EXPECT_EQ(usual, (Recorded{{"seed", "3"},
                             {"microbatch", "8"},
                             {"rule", "sgd"},
                             {"momentum", "0.9"},
                             {"weight-decay", "0.0"},
                             {"lr", "0.01"},
                             {"lr-policy", "constant"},
                             {"warmup-steps", "0"},
                             {"keep-last", "false"}}));
  const Recorded other =
      recorded_by({"--lr", "1", "--lr-policy", "gnmt", "--lr-decays", "5", "--lr-after-warmup", "--rule",
                   "lamb", "--precision", "float16", "--loss-scale-initial", "2"});
  EXPECT_EQ(other.at("lr"), "1.0");
  EXPECT_EQ(other.at("lr-decays"), "5.0");
  EXPECT_EQ(other.at("lr-after-warmup"), "1.0");
  EXPECT_EQ(other.at("loss-scale-initial"), "2.0");
  EXPECT_EQ(other.at("gamma"), "0.1");
  EXPECT_FALSE(other.contains("no-decay")) << "lamb's own";
  EXPECT_FALSE(other.contains("clip-norm")) << "lamb's own";
}

TEST(Settings, JobsOfAnArrayMayDifferInNumbersAlone) {
  for (const char* flag :
       {"lr", "seed", "data-seed", "rule", "momentum", "steps", "clip-norm", "lr-policy", "dropout"})
    EXPECT_TRUE(may_differ(flag)) << flag;
  for (const char* flag : {"microbatch", "nesterov", "clip-scope", "precision", "data", "zero-1", "stages"})
    EXPECT_FALSE(may_differ(flag)) << flag;
}

TEST(Settings, OtherToolsNamesAreAccepted) {
  TrainFlags flags;
  const auto given = parse_arguments(train_spec(flags), {"--optimizer", "adam", "--batch-size=64"});
  ASSERT_TRUE(given && given->problems().empty());
  EXPECT_TRUE(given->has("rule"));
  EXPECT_EQ(flags.options.rule.kind, UpdateRuleKind::Adam);
  EXPECT_EQ(flags.batch, 64);
  const auto twice = parse_arguments(train_spec(flags), {"--optimizer", "adam", "--rule", "sgd"});
  ASSERT_FALSE(twice);
  EXPECT_NE(to_string(twice.problems()).find("--rule: is given twice"), std::string::npos);
  const auto lists = take_job_lists(train_spec(), {"--optimizer", "adam", "sgd", "--fused"});
  ASSERT_TRUE(lists) << to_string(lists.problems());
  EXPECT_EQ(lists->args[1], (Words{"--rule=sgd", "--fused"}));
}

}  // namespace
}  // namespace millrace
