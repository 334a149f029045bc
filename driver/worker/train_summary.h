// The end of `millrace train`: summary.json and the lines that it prints.
#pragma once

#include <cstddef>
#include <string>

#include "driver/worker/train_spec.h"
#include "runtime/base/ids.h"
#include "runtime/base/json.h"
#include "runtime/train/trainer.h"

namespace millrace {

/// Returns the command line of this process, as a shell takes it; the worker's is that of `millrace`.
std::string command_of_process();

/// The flags in which the jobs differ.
Json settings_of(const TrainSpec& spec, std::size_t job);

/// Writes and prints the result of the job, with the files missing on the disk, on the rank of the last
/// stage's first replica. Returns null on the others. With several rounds it is printed when all are done.
Json publish_summary(const TrainSpec& spec, RunReport& report, const Json& files, RankId rank);

}  // namespace millrace
