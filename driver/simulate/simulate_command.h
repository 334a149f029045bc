// `millrace simulate`: simulates a schedule action by action, without a model. LibTorch-free.
#pragma once

#include <string>
#include <vector>

#include "driver/cli/cli.h"

namespace millrace {

CommandSpec simulate_spec();

/// Prints makespan, bubbles, stash and versions to stdout, problems to stderr. Returns the exit code.
int simulate_command(const std::vector<std::string>& args);

}  // namespace millrace
