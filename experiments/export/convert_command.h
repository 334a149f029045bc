// `millrace trace convert`, and the same for a run that `launch` has just ended.
#pragma once

#include <string>
#include <vector>

#include "driver/cli/cli.h"

namespace millrace {

CommandSpec convert_spec();
int convert_command(const std::vector<std::string>& args);

/// `launch --log FORMATS`: problems of the names before the run; nothing is touched.
Problems check_log_formats(const std::string& formats);
/// Writes OUTPUT_DIR/export. Returns the exit code.
int export_run(const std::string& output_dir, const std::string& formats);

}  // namespace millrace
