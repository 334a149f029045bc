// `millrace profile --jobs`: the model as job arrays of several sizes.
#pragma once

#include <vector>

#include "driver/flags/compute_specs.h"
#include "runtime/base/result.h"
#include "runtime/model/layered_model.h"
#include "runtime/plan/layer_graph.h"

namespace millrace {

/// An array of each size in `flags.jobs` but a single job's, which the profile has anyway; all jobs of one
/// seed, reading the same batches. Problem: the model has layers that no array can have.
Result<std::vector<LayeredModel>> arrays_to_measure(const ProfileFlags& flags, const LayeredModel& model);

/// A line for each size: times of a microbatch, and what a job has of them.
void print_arrays(const LayerGraph& profile);

}  // namespace millrace
