// One rank of `millrace profile --network`.
#pragma once

#include "driver/flags/compute_specs.h"
#include "driver/worker/worker_options.h"

namespace millrace {

/// Joins the ranks of the cluster file through the environment of `millrace` or torchrun and measures with
/// them; rank 0 prints the result and writes the cluster file. Exit codes: 0, 2. Throws Error.
int profile_network_rank(const ProfileFlags& flags, const Arguments& arguments,
                         const Accelerator& accelerator);

}  // namespace millrace
