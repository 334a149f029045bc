// `millrace tune`: searches the settings of a job. LibTorch-free.
#pragma once

#include <string>
#include <vector>

#include "driver/cli/cli.h"

namespace millrace {

CommandSpec tune_spec();

/// 0; 1 if no trial came to a result; 2 for what cannot start; 75 if a signal stopped it with all kept that
/// was done.
int tune_command(const std::vector<std::string>& args);

}  // namespace millrace
