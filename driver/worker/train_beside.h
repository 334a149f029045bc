// Several emulated jobs in one process and one virtual time, which share the devices.
#pragma once

#include <string>
#include <vector>

#include "driver/launch/emulate_command.h"
#include "driver/worker/worker_options.h"

namespace millrace {

/// Trains the jobs. In `args`, kBeside and the job's name precede the words of each; its lines of output
/// begin with the name. Returns the exit code of the first job that failed.
int train_beside(const std::vector<std::string>& args, const Accelerator& accelerator, const Additions& own);

}  // namespace millrace
