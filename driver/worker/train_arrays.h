// The job arrays of `millrace train`: the models of its jobs, and their division into arrays.
#pragma once

#include <string>
#include <vector>

#include "driver/worker/train_spec.h"

namespace millrace {

/// The model of each job, by its flags, of one form where they leave out different layers (complete() in
/// model/fuse.h).
Result<std::vector<LayeredModel>> models_of(const std::vector<TrainFlags>& jobs, const Additions& own);

/// Makes job arrays of `models`, as many as the spec's plan says, with the flags of each job. Without a
/// number, and if jobs cannot share an array, it makes one for each job and writes that into the plan.
Problems fuse_jobs(TrainSpec& spec, const std::vector<TrainFlags>& jobs,
                   const std::vector<LayeredModel>& models);

/// Returns whether the number of arrays should be measured: on the CPU, if no flag or plan sets it and jobs
/// may share arrays. On a GPU one array always pays, since it saves launches of kernels.
bool chooses_arrays(const TrainSpec& spec);

/// Measures the seconds of a microbatch in arrays of several sizes (divide_jobs). One process measures, and
/// the others follow it. The jobs of `spec` are one array. Throws ConfigError.
ArrayDivision measured_division(const TrainSpec& spec);

/// Divides the jobs of one array again. Throws ConfigError.
void divide(TrainSpec& spec, ArrayDivision division);

/// Returns the line for the log: the number of arrays, and the measured times.
std::string division_text(const TrainSpec& spec);

}  // namespace millrace
