// The flags of the commands that compute, without LibTorch: the worker parses by them, `millrace` prints
// their help in milliseconds, and a job file may set any of them.
#pragma once

#include "driver/cli.h"

namespace millrace {

CommandSpec train_spec();
CommandSpec profile_spec();

}  // namespace millrace
