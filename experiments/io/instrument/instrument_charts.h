// Charts of step times by batch: step breakdown, throughputs, latencies, histograms of compute time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "experiments/io/instrument/step_data.h"
#include "runtime/base/choices.h"
#include "runtime/base/result.h"

namespace millrace {

enum class Figure { Breakdown, Throughputs, Latencies, Histograms };
constexpr auto names_of(Figure) {
  return std::to_array<std::string_view>({"breakdown", "throughputs", "latencies", "histograms"});
}
enum class ChartFormat { Svg, Png, Pdf };
constexpr auto names_of(ChartFormat) {
  return std::to_array<std::string_view>({"svg", "png", "pdf"});
}

struct ChartOptions {
  std::string out;    ///< folder, exists
  std::string label;  ///< "UNET3D"; part of the files' names
  std::string title;  ///< above the charts; may be empty
  std::vector<ChartFormat> formats{ChartFormat::Svg};
  bool log_batches = false;  ///< x axis by powers of 2
  std::vector<Figure> figures{Figure::Breakdown, Figure::Throughputs, Figure::Latencies, Figure::Histograms};
};

/// One line for each number of ranks, the median with a band from the first to the third quartile.
/// Histograms: a grid of batches by ranks with the trimmed compute time, the kit's normal over it, and mu,
/// std and N. Returns the files written.
Result<std::vector<std::string>> draw_charts(const StepData& data, const ChartOptions& options);

}  // namespace millrace
