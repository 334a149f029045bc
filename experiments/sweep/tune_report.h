// A search as one HTML file: the trials' metric over iterations, the best so far over time, cost, all trials.
#pragma once

#include <string>

#include "experiments/sweep/run_tune.h"

namespace millrace {

std::string tune_report_html(const TuneSpec& spec, const TuneResults& results);

}  // namespace millrace
