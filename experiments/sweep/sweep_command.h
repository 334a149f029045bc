// `millrace sweep`: a job with many settings, serial, concurrent or fused. LibTorch-free.
#pragma once

#include <string>
#include <vector>

#include "driver/cli/cli.h"

namespace millrace {

CommandSpec sweep_spec();

/// 0; 1 if a job failed (the others ran); 2 for what cannot start; 75 if a signal stopped it with all kept
/// that was done.
int sweep_command(const std::vector<std::string>& args);

}  // namespace millrace
