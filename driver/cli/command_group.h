// Commands with commands below them: `millrace trace plot`, `millrace data generate`. LibTorch-free.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "driver/cli/cli.h"

namespace millrace {

/// One line of a group's table. `spec().command` has both words ("trace plot").
struct Subcommand {
  const char* name;
  CommandSpec (*spec)();
  int (*run)(const std::vector<std::string>& args);
  std::span<const Subcommand> (*below)() = nullptr;  ///< the commands of a group; null: it is none
};

/// The text up to the first of the characters `ends` that a space follows, for lists. "e.g." ends nothing.
std::string first_sentence(const std::string& text, std::string_view ends = ".:");
/// A line of a list of commands: the name in `width` columns, then the first sentence of the summary. It
/// may take several lines of at most 100 columns.
std::string list_entry(const std::string& name, std::size_t width, const std::string& summary);

/// Returns the entry of a group in the program's list of commands.
CommandSpec group_spec(const std::string& group, const std::string& summary);

/// Runs the subcommand that args[0] names, with what follows it. No or an unknown name: exit code 2 and what
/// there is; --help: the list, or with a name behind it the help of that subcommand. Returns the exit code.
int run_group(const CommandSpec& group, std::span<const Subcommand> table,
              const std::vector<std::string>& args);

}  // namespace millrace
