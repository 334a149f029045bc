// `millrace data text`: from text to token files and back.
#pragma once

#include <string>
#include <vector>

#include "driver/cli/cli.h"

namespace millrace {

CommandSpec data_text_spec();                ///< the subcommands, for the list of commands
std::vector<CommandSpec> data_text_specs();  ///< of each subcommand
int data_text_command(const std::vector<std::string>& args);

}  // namespace millrace
