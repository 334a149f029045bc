// Reads how the jobs of a run ended from its folder. LibTorch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace millrace {

struct JobOutcome {
  double final_loss = 0;                                ///< of training; NaN: none
  std::vector<std::pair<std::string, double>> metrics;  ///< of the last evaluation
  std::int64_t steps = 0;
  int exit_code = 0;  ///< of a job of an array that ended by itself; its error
  std::string error;
};

/// The work that a job did for its result. 0: not known, because it did not come to its end.
struct JobWork {
  double step_s = 0;         ///< median; of an array for all its jobs
  double samples_per_s = 0;  ///< median
  std::int64_t updates = 0;
  std::int64_t samples = 0;  ///< that its updates read
};
/// Reads the work of each job of the run in this folder.
JobWork work_of(const std::string& folder);

/// Returns the outcome of a run's only job.
JobOutcome outcome_of(const std::string& folder);
/// Returns the outcome of job `member` of an array.
JobOutcome outcome_of(const std::string& folder, int member);

/// Seconds of a step of a run's folder, of all jobs of an array; nothing if it did not come to its end.
std::optional<double> step_time_of(const std::string& folder);

/// "loss 0.1234, top1 0.9875"
std::string outcome_text(const std::string& folder);

/// The kernel that a layer of an array ran with.
struct KernelRow {
  std::string layer, kind, inputs, kernel;
  double loop_s = 0, fused_s = 0;
};
/// Empty: it was no array.
std::vector<KernelRow> kernels_of(const std::string& folder);

/// Loss of every step: (step, loss); of job `member` of an array, or of the only job (-1).
std::vector<std::pair<double, double>> losses_of(const std::string& folder, int member = -1);

}  // namespace millrace
