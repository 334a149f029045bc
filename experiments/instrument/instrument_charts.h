// Charts of step times by batch: step breakdown, throughputs, latencies, histograms of compute time.
#pragma once

#include <string>
#include <vector>

#include "experiments/instrument/step_data.h"
#include "runtime/base/result.h"

namespace millrace {

struct ChartOptions {
  std::string out;                          ///< folder, exists
  std::string label;                        ///< "UNET3D"; part of the files' names
  std::string title;                        ///< above the charts; may be empty
  std::vector<std::string> formats{"svg"};  ///< svg, png, pdf
  bool log_batches = false;                 ///< x axis by powers of 2
  bool breakdown = true, throughputs = true, latencies = true, histograms = true;
};

/// One line for each number of ranks, the median with a band from the first to the third quartile.
/// Histograms: a grid of batches by ranks with the trimmed compute time, the kit's normal over it, and mu,
/// std and N. Returns the files written.
Result<std::vector<std::string>> draw_charts(const StepData& data, const ChartOptions& options);

}  // namespace millrace
