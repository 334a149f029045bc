// `millrace instrument process` and `plot`: tables and charts of step times from many runs. LibTorch-free.
#pragma once

#include <string>
#include <vector>

#include "driver/cli/cli.h"

namespace millrace {

CommandSpec instrument_process_spec();
int instrument_process_command(const std::vector<std::string>& args);
CommandSpec instrument_plot_spec();
int instrument_plot_command(const std::vector<std::string>& args);

}  // namespace millrace
