// What the worker's commands share: model flags, threads, and the translation of failures into exit codes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "driver/cli.h"
#include "driver/compute_specs.h"
#include "models/registry.h"
#include "runtime/base/error.h"

namespace millrace {

/// Problems for flags and model together.
Result<LayeredModel> model_from(Arguments& arguments);

/// --threads and --deterministic for this process.
void set_compute_threads(int threads, bool deterministic);

/// Prints problems to stderr and returns the code.
int report_problems(const Problems& problems, ExitCode code);
/// Runs a command's body; maps exceptions to messages and exit codes.
int guarded(const std::function<int()>& body);

int train_command(const std::vector<std::string>& args);
int profile_command(const std::vector<std::string>& args);

}  // namespace millrace
