// `millrace plan`: from a profile and a cluster to a plan. LibTorch-free.
#pragma once

#include <string>
#include <vector>

#include "driver/cli/cli.h"

namespace millrace {

CommandSpec plan_spec();

/// Prints the plan (or PipeDream's answer with --pipedream) to stdout, problems to stderr. Returns the exit
/// code.
int plan_command(const std::vector<std::string>& args);

}  // namespace millrace
