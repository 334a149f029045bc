// `millrace trace ...`: what reads, draws, compares and converts traces. LibTorch-free.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "driver/cli/command_group.h"

namespace millrace {

CommandSpec trace_spec();
std::span<const Subcommand> trace_subcommands();

/// Runs one of the commands of the table in trace_command.cpp. Returns the exit code.
int trace_command(const std::vector<std::string>& args);

}  // namespace millrace
