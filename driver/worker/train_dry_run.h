// `millrace train --dry-run`.
#pragma once

#include "driver/worker/train_rounds.h"

namespace millrace {

/// Prints what would run. Checks the weights to start from as the Trainer does, without taking anything.
/// Throws CheckpointError. Returns the exit code.
int print_dry_run(const Rounds& rounds);

}  // namespace millrace
