#include "experiments/sweep/batch_arrays.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "driver/hosts/allocation.h"
#include "driver/hosts/program_answer.h"
#include "driver/launch/batch_job.h"
#include "driver/launch/shell_words.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/numbers.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kSlurmDeadline{60}, kAskEvery{1};
constexpr int kMostSilentAnswers = 120;
constexpr std::size_t kMostTasks = 1000;  // Slurm's own limit, where an administrator has set no other
constexpr const char *kJobFile = "job.yaml", *kOut = "launch.out", *kErr = "launch.err";

fs::path own_program() {
  std::error_code ignored;
  return fs::read_symlink("/proc/self/exe", ignored);
}

/// What a task of the array does, as a branch of the script. exec: Slurm's signals reach the launcher.
std::string branch_of(const BatchRun& run, std::size_t task) {
  const fs::path folder = fs::absolute(run.job.output_dir);
  const std::string out = quoted((folder / kOut).string()), err = quoted((folder / kErr).string());
  std::string text = std::to_string(task) + ")\n";
  text += "  exec >>" + out + " 2>>" + err + "\n";
  if (!run.before.empty()) text += "  " + command_line(run.before) + " || exit\n";
  return text + "  exec " +
         command_line({own_program().string(), "launch", (folder / kJobFile).string(), "--on=slurm",
                       "--output-dir", run.job.output_dir}) +
         "\n  ;;\n";
}

/// The lines of a script in which it asks Slurm for resources, without what each run has of its own.
std::string requests_of(const JobSpec& job) {
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

/// From the first line that says what is wrong on, without the table of ranks.
std::string last_words(const fs::path& folder) {
  const Result<std::string> text = read_file(folder / kErr);
  if (!text) return (folder / kErr).string() + " is not here: is the folder on all nodes?";
  std::string said, last;
  for (const std::string& line : split(*text, '\n')) {
    const std::size_t at = line.find("error: ");
    if (said.empty() && at != std::string::npos) said = line.substr(at + 7);
    if (!line.empty()) last = line;
  }
  return said.empty() ? last : said;
}

}  // namespace

bool runs_in_batch_arrays(const JobSpec& job) {
  return job.hosts.on == "slurm" && job.hosts.list.empty() && !is_in_slurm_allocation();
}

BatchArrays::~BatchArrays() {
  if (!tasks_.empty()) stop(true);
}

void BatchArrays::submit(const std::vector<BatchRun>& runs) {
  std::map<std::string, std::vector<const BatchRun*>> by_request;
  for (const BatchRun& run : runs) by_request[requests_of(run.job)].push_back(&run);
  for (const auto& [request, all] : by_request) {
    for (std::size_t at = 0; at < all.size(); at += kMostTasks)
      submit_array({all.begin() + static_cast<std::ptrdiff_t>(at),
                    all.begin() + static_cast<std::ptrdiff_t>(std::min(all.size(), at + kMostTasks))});
  }
}

void BatchArrays::submit_array(const std::vector<const BatchRun*>& runs) {
  std::string script = "#!/bin/sh\n" + requests_of(runs.front()->job) +
                       "#SBATCH --output=/dev/null\n#SBATCH --array=0-" + std::to_string(runs.size() - 1) +
                       "\ncase $SLURM_ARRAY_TASK_ID in\n";
  for (std::size_t task = 0; task < runs.size(); ++task) {
    const fs::path folder = runs[task]->job.output_dir;
    Status written = make_writable_folder(folder);
    // Words of an earlier try would be taken for this one's.
    std::error_code ignored;
    for (const char* name : {kOut, kErr}) fs::remove(folder / name, ignored);
    if (written) written = write_file_atomically(folder / kJobFile, to_yaml(runs[task]->job));
    if (!written) throw ConfigError(to_string(written.problems()));
    script += branch_of(*runs[task], task);
  }
  const fs::path path = fs::path(runs.front()->job.output_dir) / "array.sbatch";
  if (const Status written = write_file_atomically(path, script + "esac\n"); !written)
    throw ConfigError(to_string(written.problems()));
  const Result<std::string> answer = answer_of({"sbatch", "--parsable", path.string()}, kSlurmDeadline);
  if (!answer) throw ConfigError(to_string(answer.problems()));
  const std::string array = split(split(*answer, '\n').front(), ';').front();
  if (!number_of<std::int64_t>(array))
    throw ConfigError("sbatch answered '" + escaped(array) + "', no number of a job");
  for (std::size_t task = 0; task < runs.size(); ++task)
    tasks_[{array, static_cast<int>(task)}] = {
        .id = runs[task]->id, .folder = runs[task]->job.output_dir, .started = {}};
}

void BatchArrays::ask(const std::string& array, std::vector<BatchEnd>& ended) {
  const Result<std::string> answer =
      answer_of({"scontrol", "--oneliner", "show", "job", array}, kSlurmDeadline);
  if (!answer) {
    if (++silent_[array] < kMostSilentAnswers) return;
    throw PeerError("Slurm says nothing of job " + array + ": " + to_string(answer.problems()),
                    "the same command goes on with the runs that have ended");
  }
  silent_[array] = 0;
  for (const std::string& line : split(*answer, '\n')) {
    const BatchRecord record = batch_record(line);
    // Tasks that wait share a record: "3-9".
    const std::optional<int> number = number_of<int>(record.task);
    const auto task = number ? tasks_.find({array, *number}) : tasks_.end();
    if (task == tasks_.end()) continue;
    const TimePoint now = steady_clock().now();
    if (record.is_running && !task->second.started) task->second.started = now;
    if (!record.is_over) continue;
    BatchEnd end{.id = task->second.id, .exit_code = record.exit_code, .error = {}};
    if (task->second.started) end.run_s = Seconds(now - *task->second.started).count();
    if (end.exit_code != 0) {
      end.error = last_words(task->second.folder);
      if (record.state != "FAILED")
        end.error = "Slurm: " + record.state + (end.error.empty() ? "" : "; " + end.error);
    }
    ended.push_back(std::move(end));
    tasks_.erase(task);
  }
}

std::vector<BatchEnd> BatchArrays::ended() {
  std::vector<BatchEnd> ended;
  if (steady_clock().now() < ask_at_) return ended;
  std::set<std::string> arrays;
  for (const auto& [key, task] : tasks_) arrays.insert(key.first);
  for (const std::string& array : arrays) ask(array, ended);
  ask_at_ = steady_clock().now() + kAskEvery;
  return ended;
}

void BatchArrays::stop(bool at_once) {
  std::set<std::string> arrays;
  for (const auto& [key, task] : tasks_) arrays.insert(key.first);
  for (const std::string& array : arrays) {
    if (at_once) {
      (void)answer_of({"scancel", array}, kSlurmDeadline);
    } else {
      (void)answer_of({"scancel", "--state=PENDING", array}, kSlurmDeadline);
      (void)answer_of({"scancel", "--batch", "--signal=INT", array}, kSlurmDeadline);
    }
  }
}

}  // namespace millrace
