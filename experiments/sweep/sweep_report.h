// A sweep as one HTML file: speed-ups over the number of jobs, loss curves of the modes over each other,
// counters, what failed.
#pragma once

#include <string>

#include "experiments/sweep/run_sweep.h"

namespace millrace {

/// The whole page; works with any part missing. Loss curves are read from the jobs' folders.
std::string sweep_report_html(const SweepSpec& spec, const SweepResults& results);

}  // namespace millrace
