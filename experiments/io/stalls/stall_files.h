// The files of `millrace stalls`: stalls.json with everything, stalls.csv with a row for each cache size,
// stalls.svg.
#pragma once

#include <string>

#include "experiments/io/stalls/stall_analysis.h"

namespace millrace {

inline constexpr const char* kJobStallsFormat = "millrace-job-stalls-1";  ///< of `stalls job`

/// What `what-if` needs of an analysis.
struct StallSummary {
  StallRates rates;
  std::vector<Bytes> sizes;  ///< of the files
  StorageSpec storage;
  CachePolicy policy = CachePolicy::MinIo;
  int fetch_threads = 4;
  double cache_fraction = 0;
};

Json stalls_json(const StallJob& job, const StallReport& report);
/// Problem: the file, and what it lacks.
Result<StallSummary> read_stalls(const std::string& path);

/// Writes the three files into the folder, which exists.
Status write_stall_files(const std::string& folder, const StallJob& job, const StallReport& report);

}  // namespace millrace
