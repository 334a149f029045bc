// `millrace stalls`: where a training loop waits for its data, and what would cure it.
#pragma once

#include <span>

#include "driver/cli/command_group.h"

namespace millrace {

std::span<const Subcommand> stalls_subcommands();  ///< but `job`: job_stalls

}  // namespace millrace
