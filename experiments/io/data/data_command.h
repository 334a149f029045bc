// `millrace data`: makes data sets and checks them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "driver/cli/command_group.h"

namespace millrace {

CommandSpec data_generate_spec();  ///< `millrace data generate`
CommandSpec data_check_spec();     ///< `millrace data check`
std::span<const Subcommand> data_subcommands();

}  // namespace millrace
