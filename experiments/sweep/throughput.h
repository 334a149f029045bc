// Throughput of jobs that run side by side, as HFTA measures it: samples of all processes after the warm-up
// epochs over the time from the earliest kept start to the latest stop. Pure but for reading. LibTorch-free.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace millrace {

/// One epoch of one process. Seconds on one clock for all processes.
struct EpochTime {
  int epoch = 0;
  double start = 0, stop = 0;
  std::int64_t samples = 0;  ///< of all jobs of the process
};
using Timing = std::vector<EpochTime>;

/// The epochs of a run folder: every `steps_per_epoch` steps of the log of the rank that has the loss; what
/// is left over is no epoch. `jobs` train in it, each on all samples. Times since 1970.
Result<Timing> timing_of_run(const std::string& folder, std::int64_t steps_per_epoch, int jobs);

/// timing.csv: (index), epoch, epoch_start, epoch_stop, num_samples.
std::string timing_csv(const Timing& timing);
Result<Timing> read_timing(const std::string& path);

/// Samples per second without the first `warmup` epochs of each process; 0 if nothing is left.
double throughput(const std::vector<Timing>& processes, int warmup);

/// A column of throughputs.csv: what was measured, by number of jobs B.
using RateCurve = std::map<int, double>;
/// Linear between measured B, constant outside.
double interpolated(const RateCurve& curve, int jobs);

/// Speed-ups of one mode: a curve for each repeat.
struct ModeCurves {
  std::string mode;       ///< "serial", "concurrent", "fused"
  std::string precision;  ///< "fp32"
  std::vector<RateCurve> repeats;
};
/// Rows B = 1 .. most; columns <mode>:<precision>:<repeat>, :avg, :min, :max; every value over the mean of
/// `serial` (the mean of its repeats at B = 1).
std::string throughputs_csv(const std::vector<ModeCurves>& modes, double serial, int most);

/// Mean over the repeats that have it.
struct Band {
  double mean = 0, low = 0, high = 0;
};
Band band_at(const ModeCurves& mode, int jobs);

// ---- which B
// -------------------------------------------------------------------------------------------------

/// 1, `most`, and of round(Exp(4) most) those in between until `count` are distinct, ascending. Depends on
/// the seed alone.
std::vector<int> sizes_to_measure(int most, int count, std::uint64_t seed);

/// The greatest B up to `cap` for which `fits`: doubled until it does not, then halved between. 0: not
/// even 1.
int largest_that_fits(int cap, const std::function<bool(int)>& fits);

}  // namespace millrace
