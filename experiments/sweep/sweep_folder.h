// The folder of a sweep or a search: taken by one process at a time, and never somebody else's.
// LibTorch-free.
#pragma once

#include <string>
#include <vector>

#include "experiments/sweep/swept_job.h"
#include "runtime/base/json.h"
#include "runtime/base/result.h"
#include "runtime/base/run_folder.h"

namespace millrace {

/// Makes and locks it. Problem: another process works in it, it holds another sweep, or files of somebody
/// else. `overwrite` empties the folder of a sweep or search, and nothing else.
Result<RunLock> take_folder(const std::string& folder, const std::string& format, const Json& identity,
                            bool overwrite);

/// Returns what is known to be wrong before anything is started: with the worker, the data, the folder of
/// the results, and with each of `jobs` (`train --dry-run`: half a second each).
Problems problems_before_start(const std::vector<JobSpec>& jobs, const std::string& folder);

}  // namespace millrace
