// `millrace instrument ...`: step times of many runs as tables, charts and fits. LibTorch-free.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "driver/cli/command_group.h"

namespace millrace {

CommandSpec instrument_spec();
std::span<const Subcommand> instrument_subcommands();

/// Runs one of the commands of the table in instrument_command.cpp. Returns the exit code.
int instrument_command(const std::vector<std::string>& args);

}  // namespace millrace
