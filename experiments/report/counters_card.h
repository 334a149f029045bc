// The counters of a run over time: processors, memory, disks, networks, GPUs, and the bytes of each epoch.
#pragma once

#include <string>

#include "experiments/runs/run_data.h"

namespace millrace {

/// A card with charts and tables; empty: the run has no counters.
std::string counters_html(const RunData& run);

}  // namespace millrace
