// Several jobs as one array: the job whose flags have a value for each of them. LibTorch-free.
#pragma once

#include <string>
#include <vector>

#include "experiments/sweep/swept_job.h"

namespace millrace {

/// The job that trains all of `settings` as one array. Settings that all have alike are one value.
/// Problem: what cannot be fused.
Result<JobSpec> fused_job(const SweptJob& job, const std::vector<JobSettings>& settings,
                          const std::vector<std::string>& unfused = {});

}  // namespace millrace
