// `millrace data`: makes data sets and checks them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "driver/cli/command_group.h"

namespace millrace {

CommandSpec data_spec();           ///< the subcommands, for the list of commands
CommandSpec data_generate_spec();  ///< `millrace data generate`
CommandSpec data_check_spec();     ///< `millrace data check`
std::span<const Subcommand> data_subcommands();
int data_command(const std::vector<std::string>& args);

}  // namespace millrace
