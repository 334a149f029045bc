// `millrace device-profile`: a profile as it would be on a device that is not here. LibTorch-free.
#pragma once

#include <string>
#include <vector>

#include "driver/cli/cli.h"

namespace millrace {

CommandSpec device_profile_spec();
/// Returns 0, 2 (usage), or 3 (a file that cannot be read or does not fit).
int device_profile_command(const std::vector<std::string>& args);

}  // namespace millrace
