// The rows of batch_queues.h, each in a file of its own.
#pragma once

#include "experiments/sweep/batch_queues.h"

namespace millrace {

extern const BatchQueue kSlurmQueue;       ///< job arrays: sbatch, scontrol, scancel
extern const BatchQueue kKubernetesQueue;  ///< Indexed Jobs: kubectl

}  // namespace millrace
