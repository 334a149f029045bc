// `millrace report`: the folder of a run as one HTML file. LibTorch-free.
#pragma once

#include <string>
#include <vector>

#include "driver/cli/cli.h"

namespace millrace {

CommandSpec report_spec();

/// Writes the page and prints where it is. Returns the exit code.
int report_command(const std::vector<std::string>& args);

}  // namespace millrace
