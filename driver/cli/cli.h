// Command lines: one description gives parsing, typed values, --help and its test. LibTorch-free.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/flag.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace millrace {

/// Writes a flag's words to its target. Returns the error in them, if any.
std::optional<Problem> read_value(const Flag& flag, const std::vector<std::string>& words);

struct CommandSpec {
  std::string program = "millrace";
  std::string command;  ///< "plan"
  std::string summary;
  std::vector<std::string> positionals;  ///< names, all required; a last one "DIR..." means one or more
  std::vector<Flag> flags;               ///< --help is added
  std::vector<std::string> examples;     ///< full command lines
  /// The flags that a first use needs. `--help` shows only these; empty: all flags. Each is in `flags`.
  std::vector<std::string> first = {};
  /// Text that is printed when SIGINT or SIGTERM ends the command early, e.g. "nothing was written"; empty:
  /// nothing is.
  std::string interrupted = {};
};

/// The name that a user types, for example "millrace trace plot".
std::string name_of(const CommandSpec& spec);

/// The flags as text alone: their defaults are shown, their values go nowhere.
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

/// The treatment of a flag that the command does not describe. Refuse: it is an error. Leave: the flag
/// and the word after it are left to a program that knows more, as the worker knows the options of models.
enum class UnknownFlags { Refuse, Leave };

/// The parsed command line; the values are where the flags' targets are.
class Arguments {
 public:
  bool has(std::string_view flag) const;  ///< given by the user
  const std::vector<std::string>& positionals() const { return positionals_; }
  const std::vector<std::string>& left() const { return left_; }  ///< names of the flags that were left
  bool wants_help() const { return help_; }
  /// The word after --help: "all", a heading or a flag; empty: none was given.
  const std::string& help_topic() const { return help_topic_; }
  /// Values that do not fit ("--lr: '0.5x' is not a number"); their targets are as before.
  const Problems& problems() const { return problems_; }

 private:
  friend Result<Arguments> parse_arguments(const CommandSpec&, const std::vector<std::string>&, UnknownFlags);
  std::vector<std::string> given_;
  std::vector<std::string> positionals_;
  std::vector<std::string> left_;
  Problems problems_;
  bool help_ = false;
  std::string help_topic_;
};

/// Problems: unknown flag (nearest as hint), missing value, flag twice, missing required flag, too many
/// positionals. `--help` wins over all of them. Writes the targets of the flags that are given.
Result<Arguments> parse_arguments(const CommandSpec& spec, const std::vector<std::string>& args,
                                  UnknownFlags unknown = UnknownFlags::Refuse);
/// The topic of --help that shows every flag.
inline constexpr const char* kHelpAll = "all";
/// Grouped, with defaults, value names and examples; at most 100 columns. Only the first flags, if there are.
std::string help_text(const CommandSpec& spec);
/// The same about one topic: kHelpAll, a heading (its first letters are enough) or the name of a flag; empty:
/// help_text(spec). Problem: the command has no such topic.
Result<std::string> help_text(const CommandSpec& spec, const std::string& topic);
/// The headings of the flags as --help takes them: lower case, with dashes. In the order of the help.
std::vector<std::string> help_topics(const CommandSpec& spec);
/// The text broken at spaces into lines of at most 100 columns, which end with a line feed. The first line
/// begins at column `at`, the others are indented by `indent`.
std::string wrapped(const std::string& text, std::size_t at, std::size_t indent);

}  // namespace millrace
