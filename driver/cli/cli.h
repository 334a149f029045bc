// Command lines: one description gives parsing, typed values, --help and its test. LibTorch-free.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "driver/cli/flag_target.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace millrace {

/// One flag. `value` names the value ("FILE", "N", "F"); empty: a switch; several words ("A B"): takes as
/// many values, read with `strings`. Dashes and underscores are the same.
/// `target` is the member of an Options struct that the value is for: parse_arguments writes it, with its
/// type and range checked, if the flag is given; else the member keeps what it has, which is the default of
/// --help:
///   {.name = "steps", .value = "N", .help = "Updates.", .target = into::integer(options.steps, 0, 1000)}
/// A flag without a target is read by its name through Arguments.
struct Flag {
  std::string name;  ///< long name without dashes, e.g. "batch-size"
  char short_name = 0;
  std::string value;
  std::string help;           ///< one or more sentences with unit
  std::string fallback = {};  ///< shown as default and used when absent; empty: the target's
  bool required = false;
  std::string group;        ///< heading in --help ("" = "Options")
  bool repeatable = false;  ///< may be given more than once: read it with `strings`
  Target target = {};

  /// What --help shows, and what an absent flag reads as.
  const std::string& default_text() const { return fallback.empty() ? target.fallback : fallback; }
};

/// Writes the words that were given for a flag where they belong; what is wrong with them, if anything.
std::optional<Problem> read_value(const Flag& flag, const std::vector<std::string>& words);

struct CommandSpec {
  std::string program = "millrace";
  std::string command;  ///< "plan"
  std::string summary;
  std::vector<std::string> positionals;  ///< names, all required; a last one "DIR..." stands for one or more
  std::vector<Flag> flags;               ///< --help, and --format where `prints_results`, are added
  std::vector<std::string> examples;     ///< full command lines
};

/// The flags as text alone: their defaults are kept, their values go nowhere.
CommandSpec without_targets(CommandSpec spec);
template <class Flags>
CommandSpec without_targets(CommandSpec (*spec_of)(Flags&)) {
  Flags unused;
  return without_targets(spec_of(unused));
}

/// --format of most commands.
enum class OutputFormat { Text, Json };
constexpr auto names_of(OutputFormat) {
  return std::to_array<std::string_view>({"text", "json"});
}

/// What becomes of a flag that the command does not describe: an error, or it is left, with the word after
/// it, to a program that knows more (the options of models, which the worker knows).
enum class UnknownFlags { Refuse, Leave };

/// The parsed command line. Values that do not fit are in `problems()` ("--lr: '0.5x' is not a number"):
/// those of flags with a target from the start, others once they are asked for by a typed getter. An absent
/// flag without a fallback reads as "", as no numbers, or as the allowed number nearest to 0.
class Arguments {
 public:
  bool has(std::string_view flag) const;  ///< given by the user
  std::string string(std::string_view flag) const;
  std::int64_t integer(std::string_view flag, std::int64_t minimum, std::int64_t maximum);
  double number(std::string_view flag, double minimum, double maximum);
  bool boolean(std::string_view flag) const;                      ///< switch given
  Bytes bytes(std::string_view flag);                             ///< "16e9", "8GiB", "500MB", "123"
  std::vector<double> numbers(std::string_view flag);             ///< comma-separated
  std::vector<std::string> strings(std::string_view flag) const;  ///< each time it was given, in order
  const std::vector<std::string>& positionals() const { return positionals_; }
  const std::vector<std::string>& left() const { return left_; }  ///< names of the flags that were left
  bool wants_help() const { return help_; }
  const Problems& problems() const { return problems_; }

 private:
  template <class T>
  T value_or_problem(std::string_view flag, Result<T> value, T otherwise);
  friend Result<Arguments> parse_arguments(const CommandSpec&, const std::vector<std::string>&, UnknownFlags);
  std::vector<std::pair<std::string, std::string>> values_;  // flag name -> text (defaults included)
  std::vector<std::string> given_;
  std::vector<std::string> positionals_;
  std::vector<std::string> left_;
  Problems problems_;
  bool help_ = false;
};

/// Problems: unknown flag (nearest as hint), missing value, flag twice, missing required flag, too many
/// positionals. `--help` wins over all of them. Writes the targets of the flags that are given.
Result<Arguments> parse_arguments(const CommandSpec& spec, const std::vector<std::string>& args,
                                  UnknownFlags unknown = UnknownFlags::Refuse);
/// Grouped, with defaults, value names and examples; at most 100 columns.
std::string help_text(const CommandSpec& spec);

}  // namespace millrace
