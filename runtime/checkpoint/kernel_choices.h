// Saves the kernels that a measurement chose for the layers of a job array, so that a resumed run computes
// the same bits as an uninterrupted one.
#pragma once

#include <span>
#include <string>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/layers/job_array.h"

namespace millrace {

/// Adds "kernels/JOBS/LAYER", int64 [choices, 2], for each of `layers` that has choices. A row has the key of
/// the shapes, and 1 if the kernel over all jobs was chosen. `jobs` is the number of jobs in the array.
void add_kernel_choices(NamedTensors& state, const KernelChoices& choices, int jobs,
                        std::span<const std::string> layers);
/// Recalls the choices of all layers, from all stages' shards.
void load_kernel_choices(const Checkpoint& checkpoint, KernelChoices& choices, int jobs);

}  // namespace millrace
