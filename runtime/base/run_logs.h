// Cuts the logs of a run that goes back to an earlier step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace millrace {

/// The last column of run_files::kJobs where jobs are at steps of their own.
inline constexpr std::string_view kOwnStep = ",own_step";

/// Cuts a log off behind its last line of a step before `step`. Returns whether an evaluation of the weights
/// after these steps is among the lines that stay. It reads the log from its end, so that going
/// on takes as long after a million steps as after ten. A file that cannot be cut stays as it is: readers
/// take the later of two lines of a step.
bool cut_log_from(const std::filesystem::path& path, std::int64_t step);

/// Does what cut_log_from() does, for a table with the step in its first column. Returns false if there is no
/// table to go on with. `own_steps` tells whether rows end with the job's own step. If it is set and the rows
/// lack that column, the column is added: until then a job's own step was the step. If the rows have the
/// column, `own_steps` becomes true.
bool cut_table_from(const std::filesystem::path& path, std::int64_t step, bool& own_steps);

}  // namespace millrace
