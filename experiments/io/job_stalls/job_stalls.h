// Data stalls of a training job, also of a pipeline: the job runs on emulated devices of the wall clock, with
// its own loader and schedule, in the three differential phases.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "data/files/storage_model.h"
#include "driver/cli/cli.h"
#include "experiments/io/stalls/stall_analysis.h"
#include "runtime/base/json.h"

namespace millrace {

struct JobStallOptions {
  std::string job;  ///< file
  std::string device_profile;
  std::string cluster;             ///< empty: messages take no time
  std::vector<std::string> sets;   ///< KEY=VALUE of the job
  std::vector<std::string> files;  ///< that the job reads: dropped from the kernel's cache before a cold run
  StorageSpec storage;  ///< from which a cold run reads. `is_real`: this machine's disk, past no cache
  std::string cache = "0", policy = "minio";  ///< of a modelled storage: --storage-cache, --storage-policy
  int steps = 0;                              ///< 0: as the job says
  int repeats = 3;
  std::chrono::milliseconds timeout{600'000};  ///< of one run
  std::string out;                             ///< folder of the runs, which exists
};

/// The time that a rank waited for its batches, in a step of the cached and of the cold runs.
struct RankData {
  int rank = 0;
  double cached_s = 0, cold_s = 0;
};

struct JobStalls {
  std::vector<EpochSplit> steps;  ///< by repeat: the mean step of its runs, the first step aside
  Estimate step_s, compute_s, preparation_s, fetch_s;
  std::vector<RankData> ranks;
  double hit_ratio = -1;  ///< of the reads of the cold runs; -1: not counted
  std::int64_t steps_per_epoch = 0;
  Bytes file_bytes = 0;
};

/// Runs the phases in turn: made-up data, the job's own in the kernel's cache, and the same past the cache.
/// `tell(done, total)` after each run. Throws DataError if a run fails, and prints the end of its output.
JobStalls analyze_job(const JobStallOptions& options,
                      const std::function<void(std::int64_t done, std::int64_t total)>& tell);

Json job_stalls_json(const JobStalls& stalls);

CommandSpec job_stalls_spec();  ///< `millrace stalls job`
int job_stalls_command(const std::vector<std::string>& args);

}  // namespace millrace
