// `millrace emulate`: a job on devices that are not there. LibTorch-free.
#pragma once

#include <string>
#include <vector>

#include "driver/cli/cli.h"

namespace millrace {

/// Stands with a job's name before its words, where the worker's `train` runs several jobs in one virtual
/// time (driver/worker/train_beside.h).
inline constexpr const char* kBeside = "--beside";

CommandSpec emulate_spec();

/// Returns 0, 2 for a job that cannot start, or the code of the run.
int emulate_command(const std::vector<std::string>& args);

}  // namespace millrace
