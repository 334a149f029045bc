// Truncates the logs of a run that returns to an earlier step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace millrace {

/// The last column of run_files::kJobs when jobs have their own step counts.
inline constexpr std::string_view kOwnStep = ",own_step";

/// Truncates a log after its last line of a step before `step`. Returns whether an evaluation of the weights
/// after these steps is among the remaining lines. It reads the log from its end, so resuming takes constant
/// time in the number of steps. A file that cannot be truncated is unchanged: readers use the later of two
/// lines of a step.
bool cut_log_from(const std::filesystem::path& path, std::int64_t step);

/// Does the same as cut_log_from() for a table with the step in its first column. Returns false if there is
/// no table to continue. `own_steps` specifies whether rows end with the job's own step. If it is set and the
/// rows lack that column, the column is added, filled with the step. If the rows have the column, `own_steps`
/// becomes true.
bool cut_table_from(const std::filesystem::path& path, std::int64_t step, bool& own_steps);

}  // namespace millrace
