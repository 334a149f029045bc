// The job arrays of `millrace train`: what its jobs are made of and how they are divided.
#pragma once

#include <string>
#include <vector>

#include "driver/worker/train_spec.h"

namespace millrace {

/// The model of each job, by its flags, of one form where they leave out different layers (complete() in
/// model/fuse.h).
Result<std::vector<LayeredModel>> models_of(const std::vector<TrainFlags>& jobs, const Additions& own);

/// Makes job arrays of `models`, as many as the spec's plan says, with what each job was told. Where nobody
/// says and jobs cannot share an array, one for each job: then the plan says so too.
Problems fuse_jobs(TrainSpec& spec, const std::vector<TrainFlags>& jobs,
                   const std::vector<LayeredModel>& models);

/// Whether how many arrays there are is to be measured: nobody says it, and jobs may share arrays. Kernels
/// over all jobs on a GPU pay by what starting them costs.
bool chooses_arrays(const TrainSpec& spec);

/// Measures the seconds of a microbatch in arrays of several sizes (divide_jobs). One process measures, and
/// the others follow it. The jobs of `spec` are one array. Throws ConfigError.
ArrayDivision measured_division(const TrainSpec& spec);

/// Divides the jobs of one array again. Throws ConfigError.
void divide(TrainSpec& spec, ArrayDivision division);

/// Returns the line for the log: how many arrays there are, and what was measured.
std::string division_text(const TrainSpec& spec);

}  // namespace millrace
