#include "experiments/sweep/sweep_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>

#include "driver/launch/launch_command.h"
#include "driver/launch/local_ranks.h"
#include "experiments/sweep/journal.h"
#include "runtime/base/error.h"
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

/// Returns what `train --dry-run` of the job says is wrong.
Problems refused_by_worker(JobSpec job) {
  for (const char* flag : {"output-dir", "save-weights", "checkpoint-every", "checkpoint-at-end"})
    set_flag(job, flag, std::nullopt);
  set_flag(job, "dry-run", "true");
  std::vector<std::string> argv = train_arguments(job);
  argv.insert(argv.begin(), worker_of(job));
  const int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  SteadyClock clock;
  const LaunchOutcome outcome = run_ranks({{.argv = std::move(argv), .environment = job.environment}},
                                          {.out = null, .err = null}, clock);
  ::close(null);
  if (outcome.interrupt != 0) throw Cancelled("stopped by " + signal_text(outcome.interrupt));
  if (outcome.exit_code() == 0) return {};
  Problems problems;
  constexpr std::string_view kError = "error: ";
  for (const std::string& line : outcome.exits.front().last_lines) {
    if (line.starts_with(kError)) problems.push_back({job.source, line.substr(kError.size()), {}});
  }
  if (problems.empty())
    problems.push_back({job.source, "the worker refuses the job: " + end_text(outcome.exits.front()),
                        "`millrace launch` it by itself to see why"});
  return problems;
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

Problems problems_before_start(const std::vector<JobSpec>& jobs, const std::string& folder) {
  JobSpec first = jobs.front();
  set_flag(first, "output-dir", (fs::path(folder) / "results").string());
  set_flag(first, "overwrite", "true");
  Problems problems = check_job(first, worker_of(first));
  if (!problems.empty()) return problems;
  for (const JobSpec& job : jobs) {
    append(problems, refused_by_worker(job));
    if (!problems.empty()) break;  // the next job may have the same
  }
  return problems;
}

}  // namespace millrace
