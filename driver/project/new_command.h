// `millrace new`: a project of one's own on the installed library.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "driver/cli/cli.h"

namespace millrace {

CommandSpec new_spec();
int new_command(const std::vector<std::string>& args);

/// Returns the files of a project that is called `name`: paths in its folder, and contents.
std::vector<std::pair<std::string, std::string>> project_files(const std::string& name);

}  // namespace millrace
