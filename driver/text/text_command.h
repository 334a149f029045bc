// `millrace data text`: from text to token files and back.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "driver/cli/command_group.h"

namespace millrace {

CommandSpec data_text_spec();                ///< the subcommands, for the list of commands
std::vector<CommandSpec> data_text_specs();  ///< of each subcommand
std::span<const Subcommand> data_text_subcommands();
int data_text_command(const std::vector<std::string>& args);

}  // namespace millrace
