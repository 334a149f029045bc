// Runs the ranks of a training: all of them as threads, or this process as one of them.
#pragma once

#include "driver/worker/train_rounds.h"
#include "driver/worker/worker_environment.h"
#include "runtime/base/error.h"

namespace millrace {

/// Sets the threads and the determinism of LibTorch for this thread's process, as the flags say.
void use_threads(const TrainFlags& flags);

/// Trains one round after the other with all ranks as threads of this process.
ExitCode train_in_threads(Rounds& rounds, const Accelerator& accelerator);

/// Trains one round after the other as one rank of a distributed job.
ExitCode train_process(Rounds& rounds, const JobEnvironment& job, const Accelerator& accelerator);

}  // namespace millrace
