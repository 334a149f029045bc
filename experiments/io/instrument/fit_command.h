// `millrace instrument fit`: distributions of step times and how they grow with ranks and batch.
// LibTorch-free.
#pragma once

#include <string>
#include <vector>

#include "driver/cli/cli.h"

namespace millrace {

CommandSpec instrument_fit_spec();
int instrument_fit_command(const std::vector<std::string>& args);

}  // namespace millrace
