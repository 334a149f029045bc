// The commands that look at runs and end them: `runs`, `status`, `explain`, `logs`, `stop` and `kill`. They
// read a run's folder, so they work for runs that other terminals, launchers or hosts have started.
// LibTorch-free.
#pragma once

#include <string>
#include <vector>

#include "driver/cli/cli.h"

namespace millrace {

CommandSpec runs_spec();
int runs_command(const std::vector<std::string>& args);

CommandSpec status_spec();
int status_command(const std::vector<std::string>& args);

CommandSpec explain_spec();
int explain_command(const std::vector<std::string>& args);

CommandSpec logs_spec();
int logs_command(const std::vector<std::string>& args);

CommandSpec stop_spec();
int stop_command(const std::vector<std::string>& args);

CommandSpec kill_spec();
int kill_command(const std::vector<std::string>& args);

}  // namespace millrace
