#include "driver/launch/batch_job.h"

#include <linux/magic.h>
#include <poll.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "driver/hosts/allocation.h"
#include "driver/hosts/program_answer.h"
#include "driver/hosts/rank_process.h"
#include "driver/launch/console.h"
#include "driver/launch/shell_words.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "runtime/base/numbers.h"
#include "runtime/base/private_folder.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kSlurmDeadline{60};
constexpr int kFollowMs = 500;        // how late output is shown
constexpr int kPollsPerQuestion = 4;  // Slurm's controller is asked every two seconds
constexpr int kMostSilentAnswers = 30;

constexpr const char* kBatchJob = "batch.json";  // in the output folder

using Options = std::vector<std::pair<std::string, std::string>>;

fs::path output_of(const JobSpec& job, const std::string& id, const char* stream) {
  return fs::absolute(job.output_dir) / ("slurm-" + id + "." + stream);
}

/// What the ranks ask of Slurm. An option without a value has an empty one.
Options options_of(const JobSpec& job) {
  std::error_code error;
  Options options = {{"job-name", job.name},
                     {"ntasks", std::to_string(job.ranks)},
                     {"chdir", fs::current_path(error).string()},
                     {"output", output_of(job, "%j", "out").string()},
                     {"error", output_of(job, "%j", "err").string()},
                     {"open-mode", "append"}};
  if (const std::string* threads = job.find("threads")) options.emplace_back("cpus-per-task", *threads);
  if (const std::string* device = job.find("device"); device && *device == "cuda")
    options.emplace_back("gpus-per-task", "1");
  options.emplace_back(job.hosts.requeue ? "requeue" : "no-requeue", "");
  // To the script, which is the launcher: a minute before the time limit.
  if (job.hosts.requeue) options.emplace_back("signal", "B:TERM@60");
  if (!job.hosts.entries.empty()) {
    std::string nodes;
    for (const HostEntry& host : job.hosts.entries) nodes += (nodes.empty() ? "" : ",") + host.name;
    options.emplace_back("nodes", std::to_string(job.hosts.entries.size()));
    options.emplace_back("nodelist", nodes);
  }
  const auto drop = [&](const std::string& name) {
    std::erase_if(options, [&](const auto& option) { return option.first == name; });
  };
  for (const auto& [name, value] : job.hosts.slurm) {
    drop(name);
    if (name == "ntasks-per-node") drop("ntasks");  // with the job's nodes it says the same
  }
  options.insert(options.end(), job.hosts.slurm.begin(), job.hosts.slurm.end());
  return options;
}

/// The output of the batch job, as it grows.
class GrowingFile {
 public:
  GrowingFile(fs::path path, int to) : path_(std::move(path)), to_(to) {}
  void pass_on() {
    std::ifstream file(path_, std::ios::binary);
    if (!file || !file.seekg(at_)) return;
    char buffer[1 << 14];
    while (file.read(buffer, sizeof buffer), file.gcount() > 0) {
      at_ += file.gcount();
      print_without_waiting(to_, {buffer, static_cast<std::size_t>(file.gcount())});
    }
  }

 private:
  fs::path path_;
  int to_;
  std::streamoff at_ = 0;
};

/// The value of a word "Name=value" in the line that scontrol prints.
std::string field(const std::string& line, const std::string& name) {
  for (const std::string& word : split(line, ' '))
    if (word.starts_with(name + "=")) return word.substr(name.size() + 1);
  return "";
}

bool is_last_state(const std::string& state) {
  constexpr const char* kStates[] = {"COMPLETED",     "FAILED",    "CANCELLED", "TIMEOUT", "NODE_FAIL",
                                     "OUT_OF_MEMORY", "PREEMPTED", "BOOT_FAIL", "DEADLINE"};
  return std::ranges::any_of(kStates, [&](const char* over) { return state == over; });
}

/// "75:0" is exit code 75, "0:9" signal 9.
int code_of(const std::string& state, const std::string& text) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  const int status = number_of<int>(text.substr(0, colon)).value_or(0);
  const int signal = number_of<int>(text.substr(std::min(colon + 1, text.size()))).value_or(0);
  if (status != 0) return status;
  if (signal != 0) return 128 + signal;
  return state == "COMPLETED" ? 0 : static_cast<int>(ExitCode::RunFailed);
}

void say(const std::string& line) {
  print_without_waiting(STDERR_FILENO, "millrace launch: " + line + "\n");
}

/// What Slurm says of a batch job.
class BatchState {
 public:
  explicit BatchState(std::string id) : id_(std::move(id)) {}

  /// Asks, and tells the user what has changed. Returns false if Slurm has said nothing for a minute: a
  /// controller that is started again answers after a while.
  bool ask() {
    const Result<BatchRecord> answer = ask_slurm(id_);
    if (!answer) {
      if (++silent_ < kMostSilentAnswers) return true;
      say("Slurm says nothing of batch job " + id_ + ": " + to_string(answer.problems()));
      return false;
    }
    silent_ = 0;
    record_ = *answer;
    const std::string now = record_.text();
    if (now != std::exchange(shown_, now)) say("batch job " + id_ + " is " + now);
    return true;
  }
  bool is_over() const { return record_.is_over; }
  int exit_code() const { return record_.exit_code; }

  /// Tells the launcher inside to save and end; cancels a job that does not run yet, or `at_once`.
  void stop(bool at_once) const {
    say("batch job " + id_ +
        (record_.is_running && !at_once ? " is told to save and end; a second signal cancels it"
                                        : " is cancelled"));
    if (const Status told = stop_batch_job(id_, record_, at_once); !told) say(to_string(told.problems()));
  }

 private:
  std::string id_, shown_;
  BatchRecord record_;
  int silent_ = 0;
};

}  // namespace

std::string batch_script(const JobSpec& job, const std::vector<std::string>& launch) {
  std::string text = "#!/bin/sh\n";
  for (const auto& [name, value] : options_of(job))
    text += "#SBATCH --" + name + (value.empty() ? "" : "=" + quoted(value)) + "\n";
  return text + "exec " + command_line(launch) + "\n";
}

Result<std::string> submit_batch_job(const JobSpec& job, const std::vector<std::string>& launch) {
  std::error_code ignored;
  // It becomes a line of the script.
  if (const std::string here = fs::current_path(ignored).string(); escaped(here) != here)
    return Problem{"the current folder", "'" + escaped(here) + "' cannot stand in a batch script",
                   "go to another folder"};
  if (Status made = make_private_folder(job.output_dir); !made) return made.problems();
  const std::string path = (fs::path(job.output_dir) / "job.sbatch").string();
  if (Status written = write_file_atomically(path, batch_script(job, launch)); !written)
    return written.problems();
  const Result<std::string> answer = answer_of({"sbatch", "--parsable", path}, kSlurmDeadline);
  if (!answer) return answer.problems();
  const std::string id = split(split(*answer, '\n').front(), ';').front();
  if (!number_of<std::int64_t>(id))
    return Problem{"sbatch", "answered '" + escaped(id) + "', no number of a job", {}};
  const Json record = Json::object({{"format", "millrace-batch-1"}, {"scheduler", "slurm"}, {"job", id}});
  if (Status written = write_file_atomically(fs::path(job.output_dir) / kBatchJob, record.dump() + "\n");
      !written)
    say(to_string(written.problems()));
  if (struct statfs info{}; ::statfs(job.output_dir.c_str(), &info) == 0 && info.f_type == TMPFS_MAGIC)
    say("warning: " + job.output_dir +
        " is in the memory of this machine: other nodes do not see it. Hint: give an " +
        "--output-dir on a file system that all nodes share");
  return id;
}

std::string submitted_batch_job(const fs::path& folder) {
  const Result<Json> json = read_json((folder / kBatchJob).string());
  const Json* id = json && json->is_object() ? json->find("job") : nullptr;
  return id && id->is_string() && number_of<std::int64_t>(id->as_string()) ? id->as_string() : "";
}

Result<BatchRecord> ask_slurm(const std::string& id) {
  const Result<std::string> answer = answer_of({"scontrol", "--oneliner", "show", "job", id}, kSlurmDeadline);
  if (!answer) return answer.problems();
  return batch_record(*answer);
}

Status stop_batch_job(const std::string& id, const BatchRecord& record, bool at_once) {
  const Result<std::string> told = record.is_running && !at_once
                                       ? answer_of({"scancel", "--batch", "--signal=INT", id}, kSlurmDeadline)
                                       : answer_of({"scancel", id}, kSlurmDeadline);
  return told ? Status(Ok{}) : told.problems();
}

int follow_batch_job(const JobSpec& job, const std::string& id) {
  const SignalGuard signals;
  GrowingFile out(output_of(job, id, "out"), STDOUT_FILENO), err(output_of(job, id, "err"), STDERR_FILENO);
  BatchState state(id);
  bool stopped = false;
  for (int poll = 0;; ++poll) {
    pollfd polled{signals.descriptor(), POLLIN, 0};
    ::poll(&polled, 1, kFollowMs);
    const std::vector<int> came = signals.read();
    if ((!came.empty() || poll % kPollsPerQuestion == 0) && !state.ask())
      return static_cast<int>(ExitCode::Peer);
    out.pass_on();
    err.pass_on();
    if (state.is_over()) {
      std::error_code ignored;
      if (state.exit_code() != 0 && !fs::exists(output_of(job, id, "out"), ignored))
        say("batch job " + id + " has left no output: do its nodes see " +
            fs::absolute(job.output_dir).string() +
            "? Hint: give an --output-dir on a file system that all share");
      return state.exit_code();
    }
    if (came.empty()) continue;
    state.stop(stopped || came.size() > 1);
    stopped = true;
  }
}

std::string BatchRecord::text() const {
  return state == "PENDING" ? "PENDING (" + escaped(reason) + ")" : escaped(state);
}

BatchRecord batch_record(const std::string& line) {
  BatchRecord record{
      .state = field(line, "JobState"), .reason = field(line, "Reason"), .task = field(line, "ArrayTaskId")};
  record.is_running = record.state == "RUNNING";
  record.is_over = is_last_state(record.state);
  record.exit_code = code_of(record.state, field(line, "ExitCode"));
  return record;
}

Status requeue_batch_job() {
  const char* id = std::getenv("SLURM_JOB_ID");
  if (!is_in_slurm_allocation()) return Problem{"--requeue", "this is no batch job of Slurm", {}};
  const Result<std::string> answer = answer_of({"scontrol", "requeue", id}, kSlurmDeadline);
  if (!answer) return answer.problems();
  return Ok{};
}

}  // namespace millrace
