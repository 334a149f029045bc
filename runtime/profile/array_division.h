// Chooses how many job arrays the jobs of a run are divided into, if no flag specifies it. The time of a
// job's microbatch is measured in arrays of several sizes, before the first step. LibTorch-free.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace millrace {

/// The run whose jobs are divided.
struct DividedRun {
  std::size_t jobs = 1;
  std::size_t layers = 1;  ///< layers of the model
  int stages = 1;
  int microbatches = 1;  ///< microbatches of each array in a step
};

/// A measured array size.
struct TriedArray {
  std::size_t jobs;
  double job_s;  ///< measured seconds of one microbatch (microbatch_seconds(), profiler.h) divided by `jobs`
};

struct ArrayDivision {
  std::size_t arrays = 1;
  std::vector<TriedArray> tried;  ///< ascending, single jobs first
};

/// Returns the number of arrays with the shortest step of all jobs. That time is B t(n) (1 + (S-1) / (K M))
/// for K arrays of n of B jobs each, with S equal stages, M microbatches and t(n) seconds per job and
/// microbatch. Larger arrays use more memory, so if a job's microbatch is long, they must be faster by 3 %.
/// If it is short, they may be slower by 3 %.
/// `seconds_of(n)` measures a microbatch of an array of n jobs. It is called for 1, 2, 4, ... and all jobs.
/// The search stops early if layers take so long that launch overhead does not matter. It also stops if a
/// long microbatch was no faster at two consecutive sizes.
ArrayDivision divide_jobs(const DividedRun& run, const std::function<double(std::size_t)>& seconds_of);

}  // namespace millrace
