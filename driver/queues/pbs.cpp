// PBS: qsub, qstat, qsig and qdel, as OpenPBS and Torque have them. Agents start over ssh.
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "driver/hosts/program_answer.h"
#include "driver/queues/engine.h"
#include "driver/queues/shell_words.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/numbers.h"
#include "runtime/base/text.h"

namespace millrace {
namespace pbs {
namespace {

namespace fs = std::filesystem;

using Words = std::vector<std::string>;

constexpr const char* kLetters = "aAlmMpPqvW";  // options of qsub that a job may set
constexpr std::size_t kMostName = 15;           // letters of a job's name in Torque

bool is_inside() {
  const char *job = std::getenv("PBS_JOBID"), *nodes = std::getenv("PBS_NODEFILE");
  return job && *job && nodes && *nodes;
}

/// `queue: gpu` is `-q gpu`, a letter is that option, and all else is a resource: `-l walltime=2:00:00`.
std::string option_of(std::string key) {
  for (const auto& [name, letter] : {std::pair("queue", "q"), {"account", "A"}, {"project", "P"}})
    if (key == name) return letter;
  std::ranges::replace(key, '-', '_');
  return key;
}

Status check_option(const std::string& key, const std::string& value) {
  const std::string option = option_of(key);
  const bool plain = !option.empty() && std::isalpha(static_cast<unsigned char>(option.front())) &&
                     std::ranges::all_of(option, [](char c) {
                       return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
                     });
  const bool known = option.size() != 1 || std::string(kLetters).find(option) != std::string::npos;
  if (plain && known && !value.empty() && value.find_first_of("\n\r'\"\\") == std::string::npos) return Ok{};
  return Problem{"", " is no option or resource of qsub",
                 "e.g. pbs: {queue: gpu, walltime: \"2:00:00\", W: group_list=lab}"};
}

/// A name as all versions take it.
std::string job_name(const std::string& name) {
  std::string result;
  for (const char c : name) result += std::isalnum(static_cast<unsigned char>(c)) || c == '-' ? c : '_';
  if (result.empty() || !std::isalpha(static_cast<unsigned char>(result.front()))) result = "job_" + result;
  return result.substr(0, kMostName);
}

/// A chunk for each rank: PBS may put several on one host, and lists a host as often as it has chunks.
std::string select_of(const JobSpec& job) {
  const std::string *threads = job.find("threads"), *device = job.find("device");
  const std::string chunk = ":ncpus=" + (threads ? *threads : "1") + ":mpiprocs=1" +
                            (device && *device == "cuda" ? ":ngpus=1" : "");
  if (job.hosts.entries.empty()) return std::to_string(job.ranks) + chunk;
  std::string select;
  for (std::size_t h = 0; h < job.hosts.entries.size(); ++h)
    select +=
        (h ? "+" : "") + std::to_string(job.hosts.ranks[h]) + chunk + ":host=" + job.hosts.entries[h].name;
  return select;
}

/// The lines of a script that ask for resources.
std::string requests(const JobSpec& job) {
  NamedTexts options = {{"S", "/bin/sh"}, {"V", ""}, {"select", select_of(job)}};
  for (const auto& [key, value] : job.hosts.options_of("pbs")) {
    const std::string option = option_of(key);
    // Torque's, and the older ones of PBS, in the place of chunks.
    if (option == "select" || option == "nodes" || option == "procs")
      std::erase_if(options, [](const auto& one) { return one.first == "select"; });
    options.emplace_back(option, value);
  }
  std::string text;
  for (const auto& [option, value] : options) {
    text += "#PBS -" + (option.size() == 1 ? option + (value.empty() ? "" : " ") : "l " + option + "=");
    text += (value.empty() ? "" : quoted(value)) + "\n";
  }
  return text;
}

/// Runs `body` and leaves its exit code in `folder`: PBS may keep no record of a job that has ended. A signal
/// goes to every process of the job, so the shell ignores it and waits for the launcher.
std::string keeping_code(const std::string& folder, const std::string& body) {
  std::error_code error;
  return "cd " + quoted(fs::current_path(error).string()) + " || exit\n" +
         "left=" + quoted((fs::absolute(folder) / "pbs-").string()) + "$PBS_JOBID\n" +
         "rm -f \"$left.code\"\ntrap : INT TERM\n(\n" + body +
         ")\ncode=$?\necho $code >\"$left.code\"\nexit $code\n";
}

Result<std::string> batch_script(const JobSpec& job, const Words& launch) {
  return "#!/bin/sh\n#PBS -N " + job_name(job.name) + "\n#PBS -j oe\n#PBS -o " +
         quoted((fs::absolute(job.output_dir) / "pbs.log").string()) + "\n#PBS -r " +
         (job.hosts.requeue ? "y" : "n") + "\n" + requests(job) +
         keeping_code(job.output_dir,
                      "exec >>\"$left.out\" 2>>\"$left.err\"\nexec " + command_line(launch) + "\n");
}

/// OpenPBS has `-J` for arrays, Torque `-t`. An array of one task is a plain job.
std::string array(const JobSpec& job, int tasks, const std::string& script, const std::string& folder) {
  const Result<std::string> version = answer_of({"qsub", "--version"}, kQueueDeadline);
  const bool is_openpbs = version && version->find("pbs_version") != std::string::npos;
  const std::string range =
      std::string("#PBS ") + (is_openpbs ? "-J" : "-t") + " 0-" + std::to_string(tasks - 1);
  return "#!/bin/sh\n#PBS -N sweep\n#PBS -j oe\n#PBS -o /dev/null\n" + requests(job) +
         (tasks > 1 ? range + "\n" : "") + keeping_code(folder, script);
}

Result<std::string> submit(const std::string& path) {
  const Result<std::string> answer = answer_of({"qsub", path}, kQueueDeadline);
  if (!answer) return answer.problems();
  const std::string id = split(*answer, '\n').front();  // "12.server", "12[].server"
  if (id.empty() || !std::isdigit(static_cast<unsigned char>(id.front())))
    return Problem{"qsub", "answered '" + escaped(id) + "', no number of a job", {}};
  return id;
}

/// A job or a task, by qstat's names.
struct Block {
  std::string id;
  std::map<std::string, std::string> fields{};

  std::string field(const char* name) const {
    const auto found = fields.find(name);
    return found == fields.end() ? "" : found->second;
  }
  bool waits() const { return field("job_state").find_first_of("QHWTM") == 0; }
  bool is_over() const { return field("job_state").find_first_of("FXC") == 0; }
};

/// Reads what `qstat -f` prints. A line that begins with a tab continues the one before. An array as a whole
/// is left out.
std::vector<Block> blocks_of(const std::string& text) {
  std::vector<Block> blocks;
  std::string last;
  for (const std::string& line : split(text, '\n')) {
    const std::size_t equals = line.find(" = ");
    if (line.starts_with("Job Id: ")) {
      blocks.push_back({line.substr(8)});
    } else if (blocks.empty() || line.empty()) {
      continue;
    } else if (line.front() == '\t') {
      blocks.back().fields[last] += line.substr(1);
    } else if (equals != std::string::npos) {
      last = line.substr(0, equals);
      last.erase(0, last.find_first_not_of(' '));
      blocks.back().fields[last] = line.substr(equals + 3);
    }
  }
  std::erase_if(blocks, [](const Block& block) { return block.id.find("[]") != std::string::npos; });
  return blocks;
}

/// Returns the job or the tasks that PBS knows. A job that has ended may be known to nobody: then there is
/// none.
Result<std::vector<Block>> blocks_in_queue(const std::string& id) {
  Words words{"qstat", "-f", id};
  if (id.find("[]") != std::string::npos) words.insert(words.begin() + 1, "-t");
  const Result<std::string> answer = answer_of(words, kQueueDeadline);
  if (answer) return blocks_of(*answer);
  const std::string why = to_string(answer.problems());
  if (why.find("Unknown Job") == std::string::npos && why.find("has finished") == std::string::npos)
    return answer.problems();
  words.insert(words.begin() + 1, "-x");  // OpenPBS: of its history, if it keeps one. Torque prints XML.
  const Result<std::string> history = answer_of(words, kQueueDeadline);
  return blocks_of(history ? *history : "");
}

/// "12[3].server" is task 3. A plain job is task 0 of itself.
int task_of(const std::string& id) {
  const std::size_t open = id.find('[');
  return open == std::string::npos
             ? 0
             : number_of<int>(id.substr(open + 1, id.find(']') - open - 1)).value_or(-1);
}

/// Exit codes that the job, or tasks of the array, have left, by task.
std::map<int, int> left_codes(const std::string& id, const fs::path& folder) {
  std::map<int, int> codes;
  const auto read = [&](const fs::path& path) {
    const Result<std::string> text = read_file(path);
    const std::optional<int> code = text ? number_of<int>(split(*text, '\n').front()) : std::nullopt;
    if (code) codes[task_of(path.filename().string())] = *code;
  };
  const std::size_t bracket = id.find("[]");
  if (bracket == std::string::npos) {
    read(folder / ("pbs-" + id + ".code"));
    return codes;
  }
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("pbs-" + id.substr(0, bracket + 1)) && name.ends_with(".code")) read(entry.path());
  }
  return codes;
}

/// PBS reports signal n as 256 + n, and what it could not start as a negative number.
int code_of(const std::string& text) {
  const int status = number_of<int>(text).value_or(static_cast<int>(ExitCode::RunFailed));
  return status >= 256 ? 128 + status - 256 : status < 0 ? static_cast<int>(ExitCode::RunFailed) : status;
}

std::string state_of(const Block& block) {
  const std::string letter = block.field("job_state"), comment = block.field("comment");
  std::string state = letter;
  for (const auto& [letters, name] : {std::pair("Q", "QUEUED"),
                                      {"R", "RUNNING"},
                                      {"H", "HELD"},
                                      {"W", "WAITING"},
                                      {"SU", "SUSPENDED"},
                                      {"E", "EXITING"},
                                      {"FXC", "FINISHED"}})
    if (!letter.empty() && std::string(letters).find(letter) != std::string::npos) state = name;
  return escaped(block.waits() && !comment.empty() ? state + " (" + comment + ")" : state);
}

Result<std::vector<QueueRecord>> ask(const std::string& id, const fs::path& folder) {
  const Result<std::vector<Block>> blocks = blocks_in_queue(id);
  if (!blocks) return blocks.problems();
  std::map<int, int> codes = left_codes(id, folder);
  std::vector<QueueRecord> records;
  for (const Block& block : *blocks) {
    QueueRecord record{.task = task_of(block.id),
                       .state = state_of(block),
                       .is_running = !block.waits() && !block.is_over(),
                       .is_over = block.is_over(),
                       .exit_code = code_of(block.field("Exit_status"))};
    const auto left = codes.find(record.task);
    if (left == codes.end())
      record.reason = record.is_over ? block.field("comment") : "";
    else if (record.is_over)
      record.exit_code = left->second;
    if (left != codes.end()) codes.erase(left);
    records.push_back(std::move(record));
  }
  for (const auto& [task, code] : codes)
    records.push_back({.task = task, .state = "FINISHED", .is_over = true, .exit_code = code});
  constexpr const char* kGone = "it left the queue without an exit code";
  if (blocks->empty() && (records.empty() || id.find("[]") != std::string::npos))
    records.push_back({.task = QueueRecord::kWhole,
                       .state = std::string("FINISHED (") + kGone + ")",
                       .is_over = true,
                       .exit_code = static_cast<int>(ExitCode::RunFailed),
                       .reason = kGone});
  return records;
}

Status stop(const std::string& id, bool at_once) {
  Words cancelled{"qdel"}, told{"qsig", "-s", "INT"};
  if (at_once) {
    cancelled.push_back(id);
  } else {
    const Result<std::vector<Block>> blocks = blocks_in_queue(id);
    if (!blocks) return blocks.problems();
    for (const Block& block : *blocks)
      if (!block.is_over()) (block.waits() ? cancelled : told).push_back(block.id);
  }
  Problems problems;
  for (const auto& [words, least] : {std::pair(cancelled, 2), {told, 4}}) {
    if (words.size() < static_cast<std::size_t>(least)) continue;
    if (const Result<std::string> answer = answer_of(words, kQueueDeadline); !answer)
      append(problems, answer.problems());
  }
  return problems.empty() ? Status(Ok{}) : problems;
}

constexpr BatchQueue kQueue{.is_inside = is_inside,
                            .script = batch_script,
                            .extension = "pbs",
                            .submit = submit,
                            .requests = requests,
                            .task = "${PBS_ARRAY_INDEX:-${PBS_ARRAYID:-0}}",
                            .array = array,
                            .ask = ask,
                            .stop = stop};
constexpr PrintedForm kForms[] = {{"pbs", batch_script}};

}  // namespace
}  // namespace pbs

constinit const Engine kPbs{.name = "pbs",
                            .title = "PBS",
                            .client = "ssh",
                            .through_shell = true,
                            .command = over_ssh,
                            .allocated = hosts_of_node_file,
                            .queue = &pbs::kQueue,
                            .option = pbs::check_option,
                            .forms = pbs::kForms};

}  // namespace millrace
