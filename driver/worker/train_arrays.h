// The job arrays of `millrace train`: what its jobs are made of and how they are divided.
#pragma once

#include <string>
#include <vector>

#include "driver/worker/train_spec.h"

namespace millrace {

/// The model of one job, by its flags.
Result<LayeredModel> model_of(const TrainFlags& flags, const Additions& own);

/// Makes `arrays` job arrays of the model, with what each job was told.
Problems fuse_jobs(TrainSpec& spec, const std::vector<TrainFlags>& jobs, std::size_t arrays);

/// Whether the number of arrays is nobody's choice but this run's. Kernels over all jobs on a GPU pay by what
/// starting them costs; a run that is told to use them does.
bool chooses_arrays(const TrainSpec& spec);

/// What a microbatch takes in arrays of several sizes (divide_jobs), measured here: by the one process that
/// the others follow. Of a spec whose jobs are one array. Throws ConfigError.
ArrayDivision measured_division(const TrainSpec& spec);

/// Divides the jobs of one array again. Throws ConfigError.
void divide(TrainSpec& spec, ArrayDivision division);

/// For the log: how many arrays there are, and what was measured.
std::string division_text(const TrainSpec& spec);

}  // namespace millrace
