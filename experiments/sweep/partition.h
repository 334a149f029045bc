// Divides jobs into those that can be one array. Settings that change a shape or a program cannot be fused.
// Pure. LibTorch-free.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "experiments/sweep/settings.h"

namespace millrace {

/// True if jobs of one array may each have their own value: update rules and their numbers, learning rates,
/// seeds, dropout, label smoothing, clipping.
bool is_fusible(const std::string& flag);
/// Returns those of `flags` that cannot be fused.
std::vector<std::string> infusible_among(const std::vector<std::string>& flags);

/// Jobs by their place in the list, ascending.
using Partition = std::vector<int>;

/// The least number of partitions whose jobs agree in all `infusible` settings, in a stable order: for each
/// name in turn every partition is split by equality with its first member, the rest appended at the end.
/// `of(job)` are a job's settings.
std::vector<Partition> partitions(const std::vector<int>& jobs, const std::vector<std::string>& infusible,
                                  const std::function<const JobSettings&(int)>& of);

/// Returns the partitions of the jobs 0 to `num_jobs` - 1. It looks at kMostTriedJobs of them at most.
std::vector<Partition> partitions_of_first(int num_jobs, const std::vector<std::string>& infusible,
                                           const std::function<JobSettings(int)>& of);

/// "batch-size:8,depth:2": the infusible settings of a job, sorted by name.
std::string partition_key(const JobSettings& settings, const std::vector<std::string>& infusible);

}  // namespace millrace
