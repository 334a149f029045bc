#include "experiments/sweep/sweep_folder.h"

#include <filesystem>

#include "driver/launch/launch_command.h"
#include "experiments/sweep/journal.h"
#include "runtime/base/files.h"
#include "runtime/base/run_files.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

/// Everything but the lock, which is held.
void empty_folder(const fs::path& folder) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().filename() != run_files::kLock) fs::remove_all(entry.path(), ignored);
  }
}

}  // namespace

Result<RunLock> take_folder(const std::string& folder, const std::string& format, const Json& identity,
                            bool overwrite) {
  std::error_code ignored;
  const bool ours = fs::exists(fs::path(folder) / kJournal, ignored);
  if (!overwrite || !ours) {
    if (const Status mine = check_journal_folder(folder, format, identity); !mine) return mine.problems();
  }
  if (const Status made = make_writable_folder(folder); !made) return made.problems();
  Result<RunLock> lock = RunLock::acquire(folder, "");
  if (!lock) return lock;
  if (overwrite && ours) empty_folder(folder);
  return lock;
}

Problems problems_before_start(const SweptJob& job, const JobSettings& settings, const std::string& folder) {
  Result<JobSpec> first = job.with(settings);
  if (!first) return first.problems();
  set_flag(*first, "output-dir", (fs::path(folder) / "results").string());
  set_flag(*first, "overwrite", "true");
  return check_job(*first, worker_of(*first));
}

}  // namespace millrace
