// A job as a batch job of Slurm: the script, its submission, and how it is followed to its end.
// LibTorch-free.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "driver/launch/job_spec.h"
#include "runtime/base/result.h"

namespace millrace {

/// Returns the script for sbatch. It runs `launch`, the command that has asked for it, inside the allocation.
/// Options of the job (`slurm:`) replace those of the same name that follow from its ranks.
std::string batch_script(const JobSpec& job, const std::vector<std::string>& launch);

/// Writes the script to OUT/job.sbatch, submits it, and notes the job's number in OUT/batch.json. Returns
/// that number. Problem: what sbatch says.
Result<std::string> submit_batch_job(const JobSpec& job, const std::vector<std::string>& launch);

/// Passes on what the batch job prints until it ends, and returns its exit code. SIGINT and SIGTERM tell the
/// launcher inside to save and end; a second one cancels the job. A job that was put back into the queue is
/// followed on.
int follow_batch_job(const JobSpec& job, const std::string& id);

/// What a line of `scontrol --oneliner show job` says of a job, or of a task of an array.
struct BatchRecord {
  std::string state;   ///< "RUNNING"
  std::string reason;  ///< why it waits
  std::string task;    ///< its number in the array; "3-9": those tasks wait; empty: it is of no array
  bool is_running = false, is_over = false;
  int exit_code = 0;  ///< 128 + n for signal n; of a job that is over

  std::string text() const;  ///< "RUNNING", "PENDING (Resources)"
};
BatchRecord batch_record(const std::string& line);

/// Returns the number of the batch job that was submitted with this output folder; empty: there is none.
std::string submitted_batch_job(const std::filesystem::path& folder);
/// Asks Slurm for a job. Problem: what scontrol says, for example that it knows the job no more.
Result<BatchRecord> ask_slurm(const std::string& id);
/// Tells the launcher inside to save and end; cancels a job that does not run yet, or `at_once`.
Status stop_batch_job(const std::string& id, const BatchRecord& record, bool at_once);

/// Puts the batch job of this process back into the queue. Problem: what scontrol says.
Status requeue_batch_job();

}  // namespace millrace
