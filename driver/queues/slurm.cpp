// Slurm: srun, sbatch, scontrol and scancel.
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>

#include "driver/hosts/program_answer.h"
#include "driver/queues/engine.h"
#include "driver/queues/shell_words.h"
#include "runtime/base/error.h"
#include "runtime/base/numbers.h"
#include "runtime/base/text.h"

namespace millrace {

namespace fs = std::filesystem;

static constexpr int kMostNodes = 1 << 16;

std::vector<int> parse_tasks_per_node(const std::string& text) {
  std::vector<int> tasks;
  for (const std::string& part : split(text, ',')) {
    const std::size_t open = part.find("(x");
    const std::optional<int> number = number_of<int>(part.substr(0, open));
    std::optional<int> times = 1;
    if (open != std::string::npos) {
      if (!part.ends_with(')')) return {};
      times = number_of<int>(part.substr(open + 2, part.size() - open - 3));
    }
    if (!number || !times || *number < 1 || *times < 1 || *times > kMostNodes) return {};
    tasks.insert(tasks.end(), static_cast<std::size_t>(*times), *number);
  }
  return tasks;
}

namespace slurm {
namespace {

using Words = std::vector<std::string>;

constexpr std::chrono::seconds kScontrolDeadline{20};

std::string value_of(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

bool is_inside() {
  return !value_of("SLURM_JOB_ID").empty() && !value_of("SLURM_JOB_NODELIST").empty();
}

/// A step of one task on the node. It shares the node's processors and memory with other steps of the job.
Words over_srun(const AgentPlace& place) {
  return joined({place.client, "--nodes=1", "--ntasks=1", "--nodelist=" + place.host.name, "--overlap",
                 "--mem=0", "--cpu-bind=none", "--unbuffered", "--quiet", "--kill-on-bad-exit=0"},
                place.agent);
}

/// The nodes of the allocation, as `scontrol show hostnames` spells them. The tasks that the job has asked
/// for are the most ranks of each node; a job that asked for none shares its ranks equally.
Result<std::vector<HostEntry>> nodes_of_allocation() {
  if (!is_inside())
    return Problem{"environment", "there is no allocation of Slurm (SLURM_JOB_ID is not set)",
                   "start inside `salloc`, or in a script that `sbatch` runs"};
  if (!value_of("SLURM_HET_SIZE").empty())
    return Problem{"environment", "the allocation has several parts (a heterogeneous job)",
                   "list the nodes: hosts: [node1:2, node2:4]"};
  const std::string nodes = value_of("SLURM_JOB_NODELIST");
  const Result<std::string> names = answer_of({"scontrol", "show", "hostnames", nodes}, kScontrolDeadline);
  if (!names) return names.problems();
  const std::vector<int> tasks = value_of("SLURM_NTASKS").empty()
                                     ? std::vector<int>{}
                                     : parse_tasks_per_node(value_of("SLURM_TASKS_PER_NODE"));
  std::string list;
  std::size_t node = 0;
  for (const std::string& name : split(*names, '\n')) {
    if (name.empty()) continue;
    list += (list.empty() ? "" : ",") + name;
    if (node < tasks.size()) list += ":" + std::to_string(tasks[node]);
    ++node;
  }
  if (!tasks.empty() && tasks.size() != node)
    return Problem{"environment",
                   "SLURM_TASKS_PER_NODE=" + escaped(value_of("SLURM_TASKS_PER_NODE")) + " does not fit " +
                       std::to_string(node) + " nodes",
                   "list the nodes: hosts: [node1:2, node2:4]"};
  return parse_hosts(list);
}

std::string output_of(const JobSpec& job, const char* stream) {
  return (fs::absolute(job.output_dir) / "slurm-%j.").string() + stream;
}

/// Returns the options of sbatch for a job. An option without a value has an empty one.
NamedTexts options_of(const JobSpec& job) {
  std::error_code error;
  NamedTexts options = {{"job-name", job.name},
                        {"ntasks", std::to_string(job.ranks)},
                        {"chdir", fs::current_path(error).string()},
                        {"output", output_of(job, "out")},
                        {"error", output_of(job, "err")},
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
  const NamedTexts& given = job.hosts.options_of("slurm");
  for (const auto& [name, value] : given) {
    drop(name);
    if (name == "ntasks-per-node") drop("ntasks");  // with the job's nodes it says the same
  }
  options.insert(options.end(), given.begin(), given.end());
  return options;
}

Result<std::string> batch_script(const JobSpec& job, const Words& launch) {
  std::string text = "#!/bin/sh\n";
  for (const auto& [name, value] : options_of(job))
    text += "#SBATCH --" + name + (value.empty() ? "" : "=" + quoted(value)) + "\n";
  return text + "exec " + command_line(launch) + "\n";
}

/// `time: 1:00:00` is `#SBATCH --time=1:00:00`.
Status check_option(const std::string& key, const std::string& value) {
  const bool plain = !key.empty() && key.front() != '-' && std::ranges::all_of(key, [](char c) {
    return std::islower(static_cast<unsigned char>(c)) || std::isdigit(static_cast<unsigned char>(c)) ||
           c == '-';
  });
  if (plain && value.find_first_of("\n\r") == std::string::npos) return Ok{};
  return Problem{"", " is no option of sbatch", "e.g. slurm: {partition: gpu, time: 1:00:00}"};
}

Result<std::string> submit(const std::string& path) {
  const Result<std::string> answer = answer_of({"sbatch", "--parsable", path}, kQueueDeadline);
  if (!answer) return answer.problems();
  const std::string id = split(split(*answer, '\n').front(), ';').front();
  if (!number_of<std::int64_t>(id))
    return Problem{"sbatch", "answered '" + escaped(id) + "', no number of a job", {}};
  return id;
}

/// The lines of a script that ask for resources, without what each run has of its own.
std::string requests(const JobSpec& job) {
  JobSpec same = job;
  same.name = "sweep";
  same.output_dir = "/dev/null";
  std::string text;
  for (const std::string& line : split(*batch_script(same, {"true"}), '\n'))
    if (line.starts_with("#SBATCH ") && !line.starts_with("#SBATCH --output") &&
        !line.starts_with("#SBATCH --error"))
      text += line + "\n";
  return text;
}

std::string array(const JobSpec& job, int tasks, const std::string& script, const std::string&) {
  return "#!/bin/sh\n" + requests(job) + "#SBATCH --output=/dev/null\n#SBATCH --array=0-" +
         std::to_string(tasks - 1) + "\n" + script;
}

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

Result<std::vector<QueueRecord>> ask(const std::string& id, const fs::path&) {
  const Result<std::string> answer = answer_of({"scontrol", "--oneliner", "show", "job", id}, kQueueDeadline);
  if (!answer) return answer.problems();
  std::vector<QueueRecord> records;
  for (const std::string& line : split(*answer, '\n')) {
    const std::string state = field(line, "JobState");
    if (state.empty()) continue;
    const bool is_over = is_last_state(state), by_itself = state == "COMPLETED" || state == "FAILED";
    records.push_back(
        {.task = number_of<int>(field(line, "ArrayTaskId")).value_or(-1),  // tasks that wait share one: "3-9"
         .state = state == "PENDING" ? "PENDING (" + escaped(field(line, "Reason")) + ")" : escaped(state),
         .is_running = state == "RUNNING",
         .is_over = is_over,
         .exit_code = code_of(state, field(line, "ExitCode")),
         .reason = is_over && !by_itself ? state : ""});
  }
  return records;
}

Status stop(const std::string& id, bool at_once) {
  const Words waiting = at_once ? Words{"scancel", id} : Words{"scancel", "--state=PENDING", id};
  Result<std::string> told = answer_of(waiting, kQueueDeadline);
  if (!at_once) told = answer_of({"scancel", "--batch", "--signal=INT", id}, kQueueDeadline);
  return told ? Status(Ok{}) : told.problems();
}

Status requeue() {
  const Result<std::string> answer =
      answer_of({"scontrol", "requeue", value_of("SLURM_JOB_ID")}, kQueueDeadline);
  return answer ? Status(Ok{}) : answer.problems();
}

constexpr BatchQueue kQueue{.is_inside = is_inside,
                            .script = batch_script,
                            .extension = "sbatch",
                            .submit = submit,
                            .requests = requests,
                            .task = "$SLURM_ARRAY_TASK_ID",
                            .array = array,
                            .ask = ask,
                            .stop = stop,
                            .requeue = requeue};
constexpr PrintedForm kForms[] = {{"slurm", batch_script}};

}  // namespace
}  // namespace slurm

constinit const Engine kSlurm{.name = "slurm",
                              .title = "Slurm",
                              .client = "srun",
                              .through_shell = false,
                              .command = slurm::over_srun,
                              .allocated = slurm::nodes_of_allocation,
                              .queue = &slurm::kQueue,
                              .option = slurm::check_option,
                              .forms = slurm::kForms};

}  // namespace millrace
