// `millrace trace generate`: a raw run in the kit's layouts, from a seed. LibTorch-free.
#pragma once

#include <string>
#include <vector>

#include "driver/cli/cli.h"

namespace millrace {

CommandSpec generate_run_spec();
int generate_run_command(const std::vector<std::string>& args);

}  // namespace millrace
