// `millrace device-table`: errors in tables of devices, and how exact times between their batches
// are. LibTorch-free.
#pragma once

#include <string>
#include <vector>

#include "driver/cli/cli.h"

namespace millrace {

CommandSpec device_table_spec();
/// Returns 0, 2 (usage), or 3 (a table that cannot be read, or something suspect).
int device_table_command(const std::vector<std::string>& args);

}  // namespace millrace
