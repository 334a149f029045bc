// `millrace trace similarity`: tracesim/1 of two runs, or of two sets of repeated runs. LibTorch-free.
#pragma once

#include <string>
#include <vector>

#include "driver/cli/cli.h"

namespace millrace {

CommandSpec similarity_spec();
int similarity_command(const std::vector<std::string>& args);

}  // namespace millrace
