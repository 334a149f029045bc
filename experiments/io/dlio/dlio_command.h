// `millrace dlio`: DLIO's workloads without Python and MPI.
#pragma once

#include <string>
#include <vector>

#include "driver/cli/cli.h"

namespace millrace {

CommandSpec dlio_spec();
int dlio_command(const std::vector<std::string>& args);

}  // namespace millrace
