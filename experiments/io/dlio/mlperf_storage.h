// MLPerf Storage's rules for closed training runs: how large the data must be, what may be changed, what
// passes. Source: the submission rules of MLPerf Storage v2.0.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "experiments/io/dlio/dlio_config.h"

namespace millrace {

struct MlperfSize {
  std::int64_t samples_for_steps = 0;   ///< 500 steps of all accelerators
  std::int64_t samples_for_memory = 0;  ///< five times the hosts' memory
  std::int64_t samples = 0;             ///< the larger
  std::int64_t files = 0;
  double gib = 0;
};
MlperfSize mlperf_size(const DlioConfig& config, int accelerators, int hosts, Bytes host_memory);

/// Names of the workloads that a closed run may use.
std::vector<std::string> mlperf_workloads();

/// Returns what makes the run open instead of closed. Empty: nothing does.
std::vector<std::string> closed_violations(const DlioConfig& config);

/// One measured run (the warm-up is none).
struct MlperfRun {
  double au = 0;             ///< mean, per cent
  double throughput = 0;     ///< samples a second, all accelerators
  double compute_error = 0;  ///< of the emulated computation, per cent (dlio_output.h)
};

struct MlperfVerdict {
  bool passes = false;
  std::vector<std::string> reasons;  ///< why not, one a line; empty if it passes
};
MlperfVerdict mlperf_verdict(const DlioConfig& config, const MlperfSize& size,
                             const std::vector<MlperfRun>& runs);

}  // namespace millrace
