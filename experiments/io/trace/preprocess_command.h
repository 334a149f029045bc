// `millrace trace preprocess`: the kit's raw runs to its CSVs. LibTorch-free.
#pragma once

#include <string>
#include <vector>

#include "driver/cli/cli.h"

namespace millrace {

CommandSpec preprocess_spec();
int preprocess_command(const std::vector<std::string>& args);

}  // namespace millrace
