// How many arrays jobs are divided into where nobody says: what a job's microbatch takes in arrays of several
// sizes is measured, before the first step. LibTorch-free.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace millrace {

/// What is known of the run whose jobs are divided.
struct DividedRun {
  std::size_t jobs = 1;
  std::size_t layers = 1;  ///< of the model
  int stages = 1;
  int microbatches = 1;  ///< of each array, in a step
};

/// A size of arrays that was tried.
struct TriedArray {
  std::size_t jobs;
  double job_s;  ///< seconds of a job's microbatch: microbatch_seconds(), profiler.h
};

struct ArrayDivision {
  std::size_t arrays = 1;
  std::vector<TriedArray> tried;  ///< ascending, single jobs first
};

/// Of as many arrays as take least time for a step of all jobs: B t(n) (1 + (S-1) / (K M)) for K arrays of n
/// of B jobs, S equal stages and M microbatches. Larger arrays, which keep more at a time, must be faster by
/// 3 %. `seconds_of(n)` measures a microbatch of an array of n jobs; it is asked for 1, 2, 4, ... and all
/// jobs, for no more where layers take too long for their start to matter, or two sizes in a row were no
/// faster.
ArrayDivision divide_jobs(const DividedRun& run, const std::function<double(std::size_t)>& seconds_of);

}  // namespace millrace
