// Reports odd files of a data set, of all ranks together, for the log and the summary.
#pragma once

#include "data/loading/dataset.h"
#include "runtime/base/json.h"
#include "runtime/comm/communicator.h"

namespace millrace {

/// {"samples", "classes", "grey", "cmyk", "damaged", "left_out", "damaged_files": [...]}: distinct files that
/// any rank read so far (read ahead included); at most 100 names. Collective over all ranks, which list the
/// same files.
Json data_report(const Dataset& dataset, Communicator& communicator);

/// "200 images: 3 grey, 1 damaged"; empty if nothing is odd.
std::string data_report_text(const Json& report);

}  // namespace millrace
