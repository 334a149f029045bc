// A search as one HTML file: the trials' metric over iterations, the best so far over time, cost, all trials.
#pragma once

#include <string>

#include "experiments/sweep/tune_results.h"

namespace millrace {

std::string tune_report_html(const TuneSpec& spec, const TuneResults& results);

}  // namespace millrace
