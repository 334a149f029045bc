// `millrace emulate`: a job on devices that are not there. LibTorch-free.
#pragma once

#include <string>
#include <vector>

#include "driver/cli/cli.h"

namespace millrace {

CommandSpec emulate_spec();

/// Returns 0, 2 for a job that cannot start, or the code of the run.
int emulate_command(const std::vector<std::string>& args);

}  // namespace millrace
