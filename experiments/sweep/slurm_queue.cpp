#include <filesystem>

#include "driver/hosts/allocation.h"
#include "driver/hosts/program_answer.h"
#include "driver/hosts/program_paths.h"
#include "driver/launch/batch_job.h"
#include "experiments/sweep/batch_queues.h"
#include "experiments/sweep/own_queues.h"
#include "runtime/base/files.h"
#include "runtime/base/numbers.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kDeadline{60};

bool takes(const JobSpec& job) {
  return job.hosts.list.empty() && !is_in_slurm_allocation();
}

/// The lines of a script that ask for resources, without what each run has of its own.
std::string requests(const JobSpec& job) {
  JobSpec same = job;
  same.name = "sweep";
  same.output_dir = "/dev/null";
  std::string text;
  for (const std::string& line : split(batch_script(same, {"true"}), '\n'))
    if (line.starts_with("#SBATCH ") && !line.starts_with("#SBATCH --output") &&
        !line.starts_with("#SBATCH --error"))
      text += line + "\n";
  return text;
}

std::vector<std::string> launch() {
  return {own_program(), "launch"};
}

Result<std::string> submit(const JobSpec& job, int tasks, const std::string& script,
                           const std::string& folder) {
  const std::string path = (fs::path(folder) / "array.sbatch").string();
  const std::string text = "#!/bin/sh\n" + requests(job) + "#SBATCH --output=/dev/null\n#SBATCH --array=0-" +
                           std::to_string(tasks - 1) + "\n" + script;
  if (const Status written = write_file_atomically(path, text); !written) return written.problems();
  const Result<std::string> answer = answer_of({"sbatch", "--parsable", path}, kDeadline);
  if (!answer) return answer.problems();
  const std::string array = split(split(*answer, '\n').front(), ';').front();
  if (!number_of<std::int64_t>(array))
    return Problem{"sbatch", "answered '" + escaped(array) + "', no number of a job", {}};
  return array;
}

Result<std::vector<TaskRecord>> ask(const std::string& array) {
  const Result<std::string> answer = answer_of({"scontrol", "--oneliner", "show", "job", array}, kDeadline);
  if (!answer) return answer.problems();
  std::vector<TaskRecord> records;
  for (const std::string& line : split(*answer, '\n')) {
    const BatchRecord said = batch_record(line);
    const std::optional<int> task = number_of<int>(said.task);  // tasks that wait share a record: "3-9"
    if (!task) continue;
    TaskRecord record{.task = *task,
                      .is_running = said.is_running,
                      .is_over = said.is_over,
                      .exit_code = said.exit_code,
                      .reason = {}};
    if (said.is_over && said.state != "COMPLETED" && said.state != "FAILED") record.reason = said.state;
    records.push_back(std::move(record));
  }
  return records;
}

void stop(const std::string& array, bool at_once) {
  if (at_once) {
    (void)answer_of({"scancel", array}, kDeadline);
    return;
  }
  (void)answer_of({"scancel", "--state=PENDING", array}, kDeadline);
  (void)answer_of({"scancel", "--batch", "--signal=INT", array}, kDeadline);
}

}  // namespace

const BatchQueue kSlurmQueue{"slurm",  "Slurm",
                             takes,    [](const JobSpec&) -> Status { return Ok{}; },
                             requests, "SLURM_ARRAY_TASK_ID",
                             launch,   "slurm",
                             submit,   ask,
                             stop,     [](const std::string&) {}};

}  // namespace millrace
