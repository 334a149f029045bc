// Several emulated jobs in one process and one virtual time, which share the devices.
#pragma once

#include <string>
#include <vector>

#include "driver/launch/emulate_command.h"
#include "driver/worker/worker_options.h"

namespace millrace {

/// Trains the jobs. Before the words of each stand kBeside and its name, which its lines begin with. Returns
/// the exit code of the first that failed.
int train_beside(const std::vector<std::string>& args, const Accelerator& accelerator, const Additions& own);

}  // namespace millrace
