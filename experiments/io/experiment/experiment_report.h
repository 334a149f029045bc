// The page of an experiment. LibTorch-free.
#pragma once

#include <string>

#include "experiments/io/experiment/run_experiment.h"

namespace millrace {

std::string experiment_report_html(const ExperimentSpec& spec, const ExperimentResults& results);

}  // namespace millrace
