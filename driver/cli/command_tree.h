// All commands as a tree, for shell completion and manual pages. LibTorch-free.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "driver/cli/command_group.h"
#include "runtime/base/json.h"
#include "runtime/base/result.h"

namespace millrace {

/// A command with the commands below it. The root is the program itself: its `spec.command` is empty.
struct CommandTree {
  CommandSpec spec;
  std::vector<CommandTree> below = {};

  std::string word() const;  ///< the last word of the command: "plot" of "trace plot"
};

/// Returns the node of a command; its commands below it are taken from the table, if it is a group.
CommandTree tree_of(const Subcommand& command);
/// Calls `visit` for every node but the root, parents first.
template <class Visit>
void each_command(const CommandTree& tree, const Visit& visit) {
  for (const CommandTree& below : tree.below) {
    visit(below);
    each_command(below, visit);
  }
}

/// A tree as one program hands it to another, with all that completion and manual pages show.
Json to_json(const CommandTree& tree);
Result<CommandTree> command_tree_from(const Json& json);
/// Puts the commands of `known` in the places of those of the same names in `tree` that have none below them.
void fill_in(CommandTree& tree, const CommandTree& known);

enum class Shell { Bash, Zsh, Fish };
constexpr auto names_of(Shell) {
  return std::to_array<std::string_view>({"bash", "zsh", "fish"});
}
/// Returns a script that completes commands, flags, and values that are known. Other values are files.
std::string completion_script(const CommandTree& tree, Shell shell);

/// Manual pages (man(7)), with the names of their files: millrace.1, millrace-trace-plot.1, ...
/// `exit_codes`: the section of that name.
std::vector<std::pair<std::string, std::string>> manual_pages(const CommandTree& tree,
                                                              const std::string& version,
                                                              const std::string& exit_codes);

}  // namespace millrace
