// `millrace experiment`: many runs of jobs in variants, from one file. LibTorch-free.
#pragma once

#include <string>
#include <vector>

#include "driver/cli/cli.h"

namespace millrace {

CommandSpec experiment_spec();
int experiment_command(const std::vector<std::string>& args);

}  // namespace millrace
