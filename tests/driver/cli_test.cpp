#include "driver/cli/cli.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <sstream>

#include "driver/cli/home_path.h"
#include "driver/cli/other_words.h"
#include "driver/flags/compute_specs.h"
#include "driver/plan/plan_command.h"
#include "driver/simulate/simulate_command.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

struct Example {
  int batch = 8;
  double lr = 0.1;
  bool fast = false;
  std::optional<Bytes> memory;
  std::vector<double> machines;
  std::vector<std::string> sets, compare;
};

CommandSpec example(Example& e) {
  CommandSpec spec{
      .command = "run",
      .summary =
          "Run something that has a rather long summary, so that the first line of the help must be broken."};
  spec.flags = {
      {.name = "batch-size",
       .short_name = 'b',
       .value = "N",
       .help = "Samples.",
       .target = into::integer(e.batch, 1, 100)},
      {.name = "lr",
       .value = "F",
       .help = "Rate.",
       .group = "Training",
       .target = into::number(e.lr, -1, 1e9)},
      {.name = "fast", .short_name = 'f', .help = "A switch.", .target = into::on(e.fast)},
      {.name = "memory", .value = "BYTES", .help = "Size.", .target = into::bytes(e.memory)},
      {.name = "machines", .value = "LIST", .help = "Counts.", .target = into::numbers(e.machines)},
      {.name = "set", .value = "K=V", .help = "Many.", .repeatable = true, .target = into::texts(e.sets)},
      {.name = "compare", .value = "A B", .help = "A pair.", .target = into::texts(e.compare)}};
  spec.examples = {"millrace run --batch-size 4"};
  return spec;
}

CommandSpec example() {
  return without_targets<Example>(example);
}

/// The example's values after the arguments were parsed.
struct Parsed : Example {
  explicit Parsed(const std::vector<std::string>& args)
      : arguments(*parse_arguments(example(*this), args)), problems(arguments.problems()) {}
  Arguments arguments;
  Problems problems;
};

std::string problems_of(const std::vector<std::string>& args, const CommandSpec& spec = example()) {
  const Result<Arguments> result = parse_arguments(spec, args);
  return result ? "" : to_string(result.problems());
}

TEST(Cli, ALastPositionalWithDotsTakesOneOrMore) {
  CommandSpec spec = example();
  spec.positionals = {"DIR..."};
  EXPECT_EQ((*parse_arguments(spec, {"a", "b", "--fast", "c"})).positionals(),
            (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_NE(problems_of({"--fast"}, spec).find("DIR...: is missing"), std::string::npos);
}

TEST(Cli, ARunsFolderStandsAloneOrBehindItsFlag) {
  CommandSpec alone = example(), flagged = example();
  alone.positionals = {"DIR"};
  std::string run;
  flagged.flags.push_back(flag("", "run", "DIR", "The run.", into::text(run)));
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"out"}, {"--run", "out"}, {"--run=out"}}) {
    EXPECT_EQ((*parse_arguments(alone, args)).positionals(), (std::vector<std::string>{"out"})) << args[0];
    run.clear();
    EXPECT_TRUE((*parse_arguments(flagged, args)).has("run")) << args[0];
    EXPECT_EQ(run, "out");
  }
  EXPECT_NE(problems_of({"out", "--run", "b"}, alone).find("one argument too many"), std::string::npos);
  EXPECT_NE(problems_of({"out", "b"}, flagged).find("'b': is one argument too many"), std::string::npos);
}

TEST(Cli, ValuesOfOtherToolsAreAnsweredWithOurs) {
  const std::vector<std::string> names{"float32", "bfloat16", "float16"};
  EXPECT_EQ(choice_from("bf16", "precision", names).problems().front().hint, "here it is 'bfloat16'");
  EXPECT_EQ(choice_from("gpu", "precision", names).problems().front().hint,
            "one of: float32, bfloat16, float16");
}

TEST(Cli, EveryWayToWriteAFlagIsTheSame) {
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{{"--batch-size", "4"},
                                                                                    {"--batch_size", "4"},
                                                                                    {"--batch-size=4"},
                                                                                    {"--batch_size=4"},
                                                                                    {"-b", "4"},
                                                                                    {"-b4"},
                                                                                    {"-b=4"}}) {
    const Parsed a(args);
    EXPECT_EQ(a.batch, 4) << args[0];
    EXPECT_TRUE(a.arguments.has("batch-size"));
    EXPECT_TRUE(a.problems.empty());
  }
}

TEST(Cli, ATildeThatBeginsAPathIsTheHomeFolder) {
  ::setenv("HOME", "/users/x", 1);
  const std::pair<const char*, const char*> cases[] = {
      {"~", "/users/x"},
      {"~/a", "/users/x/a"},
      {"csv:~/a,~/b", "csv:/users/x/a,/users/x/b"},
      {"workload.dataset.data_folder=~/d", "workload.dataset.data_folder=/users/x/d"},
      {"@~/hosts", "@/users/x/hosts"},
      {"~y/a", "~y/a"},
      {"a~/b", "a~/b"},
      {"/a/~/b", "/a/~/b"},
      {"~workload.reader", "~workload.reader"}};
  CommandSpec spec{.command = "run", .summary = "Run.", .positionals = {"A", "B..."}};
  std::string given;
  spec.flags = {{.name = "data", .value = "PATH", .help = "Data.", .target = into::text(given)}};
  for (const auto& [text, expected] : cases) {
    const auto arguments = parse_arguments(spec, {"--data", text, text, "--", text});
    ASSERT_TRUE(arguments) << text;
    EXPECT_EQ(given, expected);
    EXPECT_EQ(arguments->positionals(), (std::vector<std::string>{expected, text}));
  }
  const Result<Json> file = parse_yaml("job: ~/j\nlists: {data: [~/a, 1]}\nnone: ~\n", "f");
  EXPECT_EQ(with_home(*file).dump(), R"({"job":"/users/x/j","lists":{"data":["/users/x/a",1]},"none":null})");
}

TEST(Cli, AFlagTakesAsManyValuesAsItNames) {
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"--compare", "x", "y", "-f"}, {"--compare=x", "y", "-f"}}) {
    EXPECT_EQ(Parsed(args).compare, (std::vector<std::string>{"x", "y"}));
    EXPECT_TRUE(Parsed(args).fast);
  }
  EXPECT_NE(problems_of({"--compare", "x"}).find("needs a value (A B)"), std::string::npos);
  EXPECT_NE(problems_of({"--compare", "x", "-f"}).find("needs a value (A B)"), std::string::npos);
  EXPECT_NE(problems_of({"--compare", "x", "y", "z"}).find("'z'"), std::string::npos);
  EXPECT_NE(problems_of({"--compare", "x", "y", "--compare", "x", "y"}).find("twice"), std::string::npos);
}

TEST(Cli, AbsentFlagsLeaveTheirTargets) {
  const Parsed a({});
  EXPECT_EQ(a.batch, 8);
  EXPECT_EQ(a.lr, 0.1);
  EXPECT_FALSE(a.arguments.has("lr"));
  EXPECT_FALSE(a.fast);
  EXPECT_FALSE(a.memory);
  EXPECT_TRUE(a.machines.empty());
  EXPECT_TRUE(a.sets.empty());
  EXPECT_TRUE(a.problems.empty());
}

TEST(Cli, ValuesMayBeNegativeButNotFlags) {
  const Parsed a({"--lr", "-0.5", "-f"});
  EXPECT_EQ(a.lr, -0.5);
  EXPECT_TRUE(a.fast);
  EXPECT_NE(problems_of({"--lr", "--fast"}).find("--lr: needs a value"), std::string::npos);
  EXPECT_NE(problems_of({"--lr"}).find("needs a value"), std::string::npos);
  EXPECT_EQ(Parsed({"--set=--x"}).sets, (std::vector<std::string>{"--x"}));
}

TEST(Cli, NumbersAreTakenWhole) {
  for (const char* text : {"0.5x", "nan", "inf", "0x10", "", " 1", "1 ", "1,5", "--"}) {
    const Parsed a({std::string("--lr=") + text});
    ASSERT_EQ(a.problems.size(), 1u) << text;
    EXPECT_EQ(a.problems[0].where, "--lr");
    EXPECT_EQ(a.lr, 0.1) << "it is as before";
  }
  for (const char* text : {"1.5", "1e3", "0x10", "", "99999999999999999999", "+", "4k"}) {
    EXPECT_EQ(Parsed({std::string("-b=") + text}).problems.size(), 1u) << text;
  }
  const Parsed a({"--batch-size", "101"});
  EXPECT_EQ(a.batch, 8);
  EXPECT_EQ(to_string(a.problems), "--batch-size: 101 is out of range. Hint: expected from 1 to 100");
}

TEST(Cli, BytesHaveUnits) {
  const std::pair<const char*, Bytes> table[] = {
      {"123B", 123},    {"16e9B", 16'000'000'000}, {"8GiB", 8 * kGiB}, {"500MB", 500'000'000},
      {"1.5KiB", 1536}, {"2 MiB", 2 * kMiB},       {"0B", 0},          {"7 B", 7}};
  for (const auto& [text, bytes] : table) EXPECT_EQ(Parsed({"--memory", text}).memory, bytes) << text;
  for (const char* text : {"8G", "8gib", "MB", "1e30", "-5", "8GiBx", "", "128", "16e9", "0"})
    EXPECT_EQ(Parsed({std::string("--memory=") + text}).problems.size(), 1u) << text;
  EXPECT_EQ(to_string(Parsed({"--memory", "128"}).problems),
            "--memory: '128' has no unit. Hint: 128GiB, 128MB, or 128B for bytes");
}

TEST(Cli, ListsOfNumbers) {
  EXPECT_EQ(Parsed({"--machines", "8,2.5,1e3"}).machines, (std::vector<double>{8, 2.5, 1000}));
  for (const char* text : {"8,,2", "8,", ",", "", "a"}) {
    const Parsed a({std::string("--machines=") + text});
    EXPECT_TRUE(a.machines.empty());
    EXPECT_EQ(a.problems.size(), 1u) << text;
  }
}

TEST(Cli, AllProblemsAtOnce) {
  const std::string all =
      problems_of({"--bach-size", "3", "--lr", "1", "--lr", "2", "--fast=yes", "extra", "-x"});
  EXPECT_NE(all.find("--bach-size: is not a flag of this command. Hint: did you mean --batch-size?"),
            std::string::npos)
      << all;
  EXPECT_NE(all.find("--lr: is given twice"), std::string::npos);
  EXPECT_NE(all.find("--fast: is a switch and takes no value, got 'yes'"), std::string::npos);
  EXPECT_NE(all.find("'extra': is one argument too many"), std::string::npos);
  EXPECT_NE(all.find("-x: is not a flag"), std::string::npos);
  EXPECT_EQ(all.find("'3'"), std::string::npos) << "the value of a misspelt flag is no argument of its own";
}

TEST(Cli, RequiredFlagsAndPositionals) {
  CommandSpec spec = example();
  spec.positionals = {"JOB"};
  spec.flags.push_back({.name = "model", .value = "NAME", .help = "Model.", .required = true});
  const std::string all = problems_of({}, spec);
  EXPECT_NE(all.find("--model: is required. Hint: for example `millrace run"), std::string::npos) << all;
  EXPECT_NE(all.find("JOB: is missing"), std::string::npos);
  const Result<Arguments> good = parse_arguments(spec, {"--model", "m", "--", "--job"});
  ASSERT_TRUE(good);
  EXPECT_EQ(good->positionals(), (std::vector<std::string>{"--job"}));
}

TEST(Cli, RepeatableFlagsKeepTheirOrder) {
  EXPECT_EQ(Parsed({"--set", "a=1", "--set=b=2", "--set", "a=3"}).sets,
            (std::vector<std::string>{"a=1", "b=2", "a=3"}));
}

TEST(Cli, HelpWinsOverEveryProblem) {
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{
           {"--help"}, {"-h"}, {"--nonsense", "-h"}, {"--fast=1", "--help"}}) {
    EXPECT_TRUE(Parsed(args).arguments.wants_help());
  }
  EXPECT_FALSE(Parsed({"--set", "x", "--fast"}).arguments.wants_help());
}

enum class Size { Small, VeryLarge };
constexpr auto names_of(Size) {
  return std::to_array<std::string_view>({"small", "very-large"});
}

struct Lists {
  std::vector<int> counts{8, 2};
  std::vector<Size> sizes{Size::Small};
  std::optional<Size> size;
};

CommandSpec lists_spec(Lists& l) {
  return {
      .command = "lists",
      .summary = "Lists.",
      .flags = {
          {.name = "counts", .value = "LIST", .help = "Counts.", .target = into::integers(l.counts, 1, 100)},
          {.name = "sizes", .value = "LIST", .help = "Sizes.", .target = into::choices(l.sizes, "size")},
          {.name = "size",
           .value = "NAME",
           .help = "Size.",
           .required = true,
           .target = into::choice(l.size, "size")}}};
}

TEST(Cli, ListsOfIntegersAndOfNames) {
  Lists l;
  const CommandSpec spec = lists_spec(l);
  const std::string help = help_text(spec);
  for (const char* text : {"Counts. [default: 8,2]", "Sizes. [default: small]", "Size. Required.\n"})
    EXPECT_NE(help.find(text), std::string::npos) << text << "\n" << help;
  ASSERT_TRUE(parse_arguments(
      spec, {"--counts", "3,100", "--sizes=very-large,small,very-large", "--size", "very-large"}));
  EXPECT_EQ(l.counts, (std::vector<int>{3, 100}));
  EXPECT_EQ(l.sizes, (std::vector<Size>{Size::VeryLarge, Size::Small})) << "each once";
  EXPECT_EQ(l.size, Size::VeryLarge);
  const Result<Arguments> wrong =
      parse_arguments(spec, {"--counts", "3,101", "--sizes=small,,", "--size", "tiny"});
  ASSERT_TRUE(wrong);
  EXPECT_EQ(wrong->problems().size(), 3u) << to_string(wrong->problems());
  EXPECT_EQ(l.counts, (std::vector<int>{3, 100})) << "as before";
}

struct Bound {
  int count = 8;
  double rate = 0.5;
  std::optional<int> most;
  Bytes memory = 4 * kMiB;
  std::chrono::milliseconds deadline{2500};
  Size size = Size::Small;
  std::vector<std::string> keys, sets;
  bool fast = false, evaluate = true;
};

CommandSpec bound_spec(Bound& b) {
  CommandSpec spec{.command = "bound", .summary = "Targets."};
  spec.flags = {
      {.name = "count", .value = "N", .help = "Count.", .target = into::integer(b.count, 1, 100)},
      {.name = "rate", .value = "F", .help = "Rate.", .target = into::number(b.rate, 0, 1)},
      {.name = "most", .value = "N", .help = "Most.", .target = into::integer(b.most, 0)},
      {.name = "memory", .value = "BYTES", .help = "Size.", .target = into::bytes(b.memory)},
      {.name = "deadline",
       .value = "SECONDS",
       .help = "Wait.",
       .target = into::duration(b.deadline, 0.1, 10)},
      {.name = "size", .value = "NAME", .help = "Size.", .target = into::choice(b.size, "size")},
      {.name = "keys", .value = "KEYS", .help = "Keys.", .target = into::list(b.keys)},
      {.name = "set", .value = "K=V", .help = "Many.", .repeatable = true, .target = into::texts(b.sets)},
      {.name = "fast", .help = "On.", .target = into::on(b.fast)},
      {.name = "no-evaluation", .help = "Off.", .target = into::off(b.evaluate)}};
  return spec;
}

TEST(Cli, TargetsAreWrittenWithTheirTypes) {
  Bound b;
  const Result<Arguments> result =
      parse_arguments(bound_spec(b), {"--count=4", "--rate", "1e-3", "--most", "7", "--memory", "1GiB",
                                      "--deadline", "0.25", "--size", "very-large", "--keys", "lr,,data,",
                                      "--set", "a=1,2", "--set=--b", "--fast", "--no-evaluation"});
  ASSERT_TRUE(result) << to_string(result.problems());
  EXPECT_TRUE(result->problems().empty()) << to_string(result->problems());
  EXPECT_EQ(b.count, 4);
  EXPECT_EQ(b.rate, 1e-3);
  EXPECT_EQ(b.most, 7);
  EXPECT_EQ(b.memory, kGiB);
  EXPECT_EQ(b.deadline.count(), 250);
  EXPECT_EQ(b.size, Size::VeryLarge);
  EXPECT_EQ(b.keys, (std::vector<std::string>{"lr", "data"}));
  EXPECT_EQ(b.sets, (std::vector<std::string>{"a=1,2", "--b"}));
  EXPECT_TRUE(b.fast);
  EXPECT_FALSE(b.evaluate);
}

TEST(Cli, TargetsKeepTheirDefaultsAndShowThem) {
  Bound b;
  const CommandSpec spec = bound_spec(b);
  EXPECT_TRUE(parse_arguments(spec, {}));
  EXPECT_EQ(b.count, 8);
  EXPECT_EQ(b.most, std::nullopt);
  const std::string help = help_text(spec);
  for (const char* text :
       {"Count. [default: 8]", "Rate. [default: 0.5]", "Size. [default: 4MiB]", "Wait. [default: 2.5]",
        "Size. [default: small]", "Most.\n", "Keys.\n", "On.\n", "Off.\n"})
    EXPECT_NE(help.find(text), std::string::npos) << text << "\n" << help;
  EXPECT_EQ(help_text(without_targets(spec)), help);
}

TEST(Cli, WrongValuesOfTargetsAreAllNamed) {
  Bound b;
  const Result<Arguments> result =
      parse_arguments(bound_spec(b), {"--count", "101", "--rate", "0.5x", "--most=-1", "--memory", "8G",
                                      "--deadline", "0", "--size", "very_large", "--fast"});
  ASSERT_TRUE(result);
  const std::string all = to_string(result->problems());
  for (const char* text :
       {"--count: 101 is out of range. Hint: expected from 1 to 100", "--rate: '0.5x' is not a number",
        "--most: -1 is out of range. Hint: expected at least 0", "--memory: '8G' is not a size",
        "--deadline: 0 is out of range. Hint: expected from 0.1 to 10",
        "--size: unknown size 'very_large'. Hint: did you mean 'very-large'?"})
    EXPECT_NE(all.find(text), std::string::npos) << text << "\n" << all;
  EXPECT_EQ(b.count, 8);
  EXPECT_TRUE(b.fast) << "the others are written";
}

TEST(Cli, OddTextReachesTheMessageNotTheParser) {
  EXPECT_EQ(Parsed({"--set", std::string(1 << 20, 'x')}).sets.front().size(), 1u << 20);
  EXPECT_EQ(Parsed({"--set=a\nb=c"}).sets.front(), "a\nb=c");
  EXPECT_EQ(Parsed({"--set="}).sets, std::vector<std::string>{""});
  for (const char* text : {"---set", "--=x", "--s t=1", "-\xc3\xa9", "--b", "-=4"})
    EXPECT_NE(problems_of({text}).find("is not a flag of this command"), std::string::npos) << text;
}

TEST(Cli, HelpIsGroupedAndFitsTheTerminal) {
  CommandSpec spec = example();
  spec.examples.push_back("millrace run " +
                          std::string("--batch-size 4 --lr 0.1 --memory 8GiB --machines 8,2 ") +
                          "--set abcdefghijklmnopqrstuvwxyz=1 --set b=2");
  const std::string help = help_text(spec);
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
  EXPECT_NE(help.find("  -b, --batch-size N"), std::string::npos) << help;
  EXPECT_NE(help.find("[default: 8]"), std::string::npos);
  EXPECT_NE(help.find("\nTraining:\n      --lr F"), std::string::npos);
  EXPECT_NE(help.find("-h, --help"), std::string::npos);
  EXPECT_NE(help.find("\nExamples:\n  millrace run --batch-size 4\n"), std::string::npos);
  EXPECT_NE(help.find(" \\\n      "), std::string::npos) << "a long example is continued";
}

CommandSpec example_with_first() {
  CommandSpec spec = example();
  spec.first = {"lr", "memory"};
  spec.flags[1].brief = "The rate in brief.";
  return spec;
}

TEST(Cli, ShortHelpShowsTheFirstFlagsAndTheWayToTheOthers) {
  const CommandSpec spec = example_with_first();
  const std::string help = help_text(spec);
  for (const char* part : {"--lr F", "The rate in brief. [default: 0.1]", "--memory BYTES",
                           "\nExamples:\n  millrace run --batch-size 4\n",
                           "5 more flags: `millrace run --help all`", "one of options, training."})
    EXPECT_NE(help.find(part), std::string::npos) << part << "\n" << help;
  EXPECT_EQ(help.find("--compare"), std::string::npos) << help;
  const Result<std::string> all = help_text(spec, "all");
  ASSERT_TRUE(all);
  for (const Flag& flag : spec.flags)
    EXPECT_NE(all->find("--" + flag.name + " "), std::string::npos) << flag.name;
}

TEST(Cli, HelpOfATopic) {
  const CommandSpec spec = example_with_first();
  for (const char* topic : {"training", "Training", "tr", "lr", "--lr"}) {
    const Result<std::string> help = help_text(spec, topic);
    ASSERT_TRUE(help) << topic;
    EXPECT_NE(help->find("Rate. [default: 0.1]"), std::string::npos) << topic << "\n" << *help;
    EXPECT_EQ(help->find("--memory"), std::string::npos) << topic;
  }
  const Result<std::string> unknown = help_text(spec, "nonsense");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(
      to_string(unknown.problems()),
      "millrace run --help: 'nonsense' is no heading and no flag. Hint: all, options, training, or the name "
      "of a flag");
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{
           {"--help", "training"}, {"--help=training"}, {"-h", "training", "-f"}}) {
    const Parsed asked(args);
    EXPECT_TRUE(asked.arguments.wants_help());
    EXPECT_EQ(asked.arguments.help_topic(), "training") << args[0];
  }
  EXPECT_EQ(Parsed({"--help", "--lr", "1"}).arguments.help_topic(), "");
}

TEST(Cli, KnowsTheWordsOfOtherTools) {
  CommandSpec spec = example();
  spec.flags.push_back({.name = "microbatch", .value = "N", .help = "Samples."});
  spec.flags.push_back({.name = "precision", .value = "NAME", .help = "Form of numbers."});
  EXPECT_NE(problems_of({"--train-batch-size", "32"}, spec)
                .find("--train-batch-size: is not a flag of this command. Hint: here it is --microbatch"),
            std::string::npos);
  EXPECT_NE(problems_of({"--amp"}, spec).find("here it is --precision: for example --precision float16"),
            std::string::npos);
  EXPECT_NE(problems_of({"--tp", "2"}, spec).find("no tensor parallelism"), std::string::npos);
  EXPECT_EQ(problems_of({"--amp"}).find("here it is"), std::string::npos)
      << "this command has no --precision";
}

TEST(Cli, EveryWordOfOtherToolsIsNoFlagHere) {
  std::set<std::pair<std::string_view, std::string_view>> seen;
  const CommandSpec train = train_spec();
  for (const OtherWord& word : other_words()) {
    EXPECT_TRUE(seen.insert({word.theirs, word.here}).second) << word.theirs << " stands twice";
    EXPECT_EQ(std::ranges::count(train.flags, word.theirs, &Flag::name), 0) << word.theirs;
    EXPECT_FALSE(word.here.empty() && word.note.empty()) << word.theirs;
  }
}

TEST(Cli, FirstFlagsAreFlags) {
  for (const CommandSpec& spec :
       {train_spec(), profile_spec(), plan_spec(), evaluate_spec(), predict_spec(), simulate_spec()}) {
    const std::set<std::string> of_models{"classes", "image-size"};
    EXPECT_LE(spec.first.size(), 20u);
    for (const std::string& name : spec.first)
      EXPECT_TRUE(of_models.contains(name) || std::ranges::count(spec.flags, name, &Flag::name) == 1) << name;
  }
}

}  // namespace
}  // namespace millrace
