// `millrace stalls`: where a training loop waits for its data, and what would cure it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "driver/cli/command_group.h"

namespace millrace {

CommandSpec stalls_spec();
std::span<const Subcommand> stalls_subcommands();
int stalls_command(const std::vector<std::string>& args);

}  // namespace millrace
