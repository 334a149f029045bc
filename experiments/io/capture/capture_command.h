// `millrace trace capture`.
#pragma once

#include <string>
#include <vector>

#include "driver/cli/cli.h"

namespace millrace {

CommandSpec capture_spec();
int capture_command(const std::vector<std::string>& args);

}  // namespace millrace
