#include "runtime/profile/array_division.h"

#include <algorithm>

namespace millrace {
namespace {

// Seconds of the mean layer, forward and backward. For a longer layer, launch overhead is negligible.
constexpr double kLongLayer = 2e-3;
// Seconds of a job's microbatch. A longer one must meet kGainOfLong: larger arrays use more memory, so they
// must gain more than the measurement error. Not all sizes are tried then. For a shorter one, fewer and
// larger arrays are preferred (kGainOfShort), because an array's step also takes time outside its layers.
constexpr double kLongJob = 1e-3;
constexpr double kGainOfLong = 0.97, kGainOfShort = 1.03;

}  // namespace

ArrayDivision divide_jobs(const DividedRun& run, const std::function<double(std::size_t)>& seconds_of) {
  const auto arrays_of = [&](std::size_t size) { return (run.jobs + size - 1) / size; };
  const auto step_s = [&](const TriedArray& one) {
    const double fills = static_cast<double>(arrays_of(one.jobs)) * run.microbatches;
    return one.job_s * (1 + (run.stages - 1) / fills);
  };
  ArrayDivision division;
  TriedArray best{};
  double least_s = 0;  // over all tried sizes: small losses must not accumulate
  int no_faster = 0;
  for (std::size_t size = 1; size <= run.jobs;) {
    const TriedArray& tried =
        division.tried.emplace_back(TriedArray{size, seconds_of(size) / static_cast<double>(size)});
    const double job_s = division.tried.front().job_s;
    const double gain = job_s > kLongJob ? kGainOfLong : kGainOfShort;
    const auto to_beat = [&] { return job_s > kLongJob ? step_s(best) : least_s; };
    if (size == 1 || step_s(tried) < gain * to_beat()) {
      best = tried;
      no_faster = 0;
    } else {
      ++no_faster;
    }
    least_s = size == 1 ? step_s(tried) : std::min(least_s, step_s(tried));
    if (job_s > kLongLayer * static_cast<double>(run.layers) || (no_faster == 2 && job_s > kLongJob)) break;
    size = size == run.jobs ? size + 1 : std::min(2 * size, run.jobs);
  }
  division.arrays = arrays_of(best.jobs);
  return division;
}

}  // namespace millrace
