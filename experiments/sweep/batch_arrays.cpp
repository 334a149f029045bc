#include "experiments/sweep/batch_arrays.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "driver/hosts/program_paths.h"
#include "driver/launch/job_spec.h"
#include "driver/queues/shell_words.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kAskEvery{1};
constexpr int kMostSilentAnswers = 120;
constexpr std::size_t kMostTasks = 500;  // Slurm takes 1,000, and a pod's script must fit into 1 MiB
constexpr const char *kJobFile = "job.yaml", *kOut = "launch.out", *kErr = "launch.err";

/// Returns the engine with which `launch` of a run starts its ranks. A queue that takes whole jobs gives each
/// run its own nodes.
const char* launch_on(const Engine& engine) {
  return engine.queue->script ? engine.name : "local";
}

/// What a task of the array does, as a branch of the script. exec: signals reach the launcher.
std::string branch_of(const Engine& engine, const BatchRun& run, std::size_t task) {
  const fs::path folder = fs::absolute(run.job.output_dir);
  std::string text = std::to_string(task) + ")\n  exec >>" + quoted((folder / kOut).string()) + " 2>>" +
                     quoted((folder / kErr).string()) + "\n";
  std::vector<std::string> before = run.before;
  // A program of an image is found by its name.
  if (!before.empty() && !engine.shares_paths) before.front() = fs::path(before.front()).filename().string();
  if (!before.empty()) text += "  " + command_line(before) + " || exit\n";
  return text + "  exec " +
         command_line({engine.shares_paths ? own_program() : "millrace", "launch",
                       (folder / kJobFile).string(), std::string("--on=") + launch_on(engine), "--output-dir",
                       run.job.output_dir}) +
         "\n  ;;\n";
}

/// How the rank that failed first was killed, else the first line that says what is wrong, else the last one.
std::string last_words(const fs::path& folder) {
  const Result<std::string> text = read_file(folder / kErr);
  if (!text)
    return (folder / kErr).string() + " is not here: is this folder where the run was, under the same path?";
  for (const std::string& line : split(*text, '\n'))
    if (const std::size_t at = line.find(" failed first: killed by"); at != std::string::npos)
      return line.substr(at + 15);
  for (const std::string& line : split(*text, '\n'))
    if (const std::size_t at = line.find("error: "); at != std::string::npos) return line.substr(at + 7);
  return last_line(*text);
}

}  // namespace

const Engine* queue_of(const JobSpec& job) {
  return job.hosts.list.empty() ? waits_in_queue(job) : nullptr;
}

BatchArrays::~BatchArrays() {
  stop(true);
}

void BatchArrays::submit(const std::vector<BatchRun>& runs) {
  std::map<std::pair<const Engine*, std::string>, std::vector<const BatchRun*>> alike;
  for (const BatchRun& run : runs) {
    const Engine* engine = queue_of(run.job);
    alike[{engine, engine->queue->requests(run.job)}].push_back(&run);
  }
  for (const auto& [key, all] : alike) {
    for (std::size_t at = 0; at < all.size(); at += kMostTasks)
      submit_array(*key.first,
                   {all.begin() + static_cast<std::ptrdiff_t>(at),
                    all.begin() + static_cast<std::ptrdiff_t>(std::min(all.size(), at + kMostTasks))});
  }
}

void BatchArrays::submit_array(const Engine& engine, const std::vector<const BatchRun*>& runs) {
  const BatchQueue& queue = *engine.queue;
  std::string script = std::string("case ") + queue.task + " in\n";
  for (std::size_t task = 0; task < runs.size(); ++task) {
    const fs::path folder = runs[task]->job.output_dir;
    Status written = make_writable_folder(folder);
    // Words of an earlier try would be taken for this one's.
    std::error_code ignored;
    for (const char* name : {kOut, kErr}) fs::remove(folder / name, ignored);
    JobSpec job = runs[task]->job;
    if (job.hosts.on != launch_on(engine))
      job.hosts = {};  // its ranks stay together where the queue puts them
    if (written) written = write_file_atomically(folder / kJobFile, to_yaml(job));
    if (!written) throw ConfigError(to_string(written.problems()));
    script += branch_of(engine, *runs[task], task);
  }
  const JobSpec& first = runs.front()->job;
  const std::string path = (fs::path(first.output_dir) / "array.").string() + queue.extension;
  const Status written = write_file_atomically(
      path, queue.array(first, static_cast<int>(runs.size()), script + "esac\n", first.output_dir));
  const Result<std::string> array = written ? queue.submit(path) : written.problems();
  if (!array) throw ConfigError(to_string(array.problems()));
  arrays_[*array] = {&engine, first.output_dir};
  for (std::size_t task = 0; task < runs.size(); ++task)
    tasks_[{*array, static_cast<int>(task)}] = {
        .id = runs[task]->id, .folder = runs[task]->job.output_dir, .started = {}};
}

BatchEnd BatchArrays::end_of(const Task& task, const QueueRecord& record, const char* queue) const {
  BatchEnd end{.id = task.id, .exit_code = record.exit_code, .error = {}};
  if (task.started) end.run_s = Seconds(steady_clock().now() - *task.started).count();
  if (end.exit_code == 0) return end;
  end.error = last_words(task.folder);
  if (!record.reason.empty()) end.error = std::string(queue) + ": " + record.reason + "; " + end.error;
  return end;
}

void BatchArrays::ask(const std::string& array, std::vector<BatchEnd>& ended) {
  const auto& [engine, folder] = arrays_.at(array);
  const Result<std::vector<QueueRecord>> records = engine->queue->ask(array, folder);
  if (!records) {
    if (++silent_[array] < kMostSilentAnswers) return;
    throw PeerError(
        std::string(engine->title) + " says nothing of " + array + ": " + to_string(records.problems()),
        "the same command goes on with the runs that have ended");
  }
  std::set<int> told;
  // A file system may show a task's exit code later than the queue forgets the array.
  const auto whole = std::ranges::find(*records, QueueRecord::kWhole, &QueueRecord::task);
  silent_[array] = whole == records->end() ? 0 : silent_[array] + 1;
  const bool is_gone = silent_[array] >= kMostSilentAnswers;
  for (const QueueRecord& record : *records) {
    const auto task = tasks_.find({array, record.task});
    if (task == tasks_.end()) continue;
    told.insert(record.task);
    if (record.is_running && !task->second.started) task->second.started = steady_clock().now();
    if (!record.is_over) continue;
    ended.push_back(end_of(task->second, record, engine->title));
    tasks_.erase(task);
  }
  // Where tasks that are cancelled leave no record.
  for (auto task = tasks_.lower_bound({array, 0});
       (stopped_ || is_gone) && task != tasks_.end() && task->first.first == array;) {
    const bool gone = !told.contains(task->first.second);
    if (gone && stopped_)
      ended.push_back({.id = task->second.id, .exit_code = static_cast<int>(ExitCode::Requeue), .error = {}});
    else if (gone)
      ended.push_back(end_of(task->second, *whole, engine->title));
    task = gone ? tasks_.erase(task) : std::next(task);
  }
  const auto left = tasks_.lower_bound({array, 0});
  if (left != tasks_.end() && left->first.first == array) return;
  if (engine->queue->clean_up) engine->queue->clean_up(array);
  arrays_.erase(array);
}

std::vector<BatchEnd> BatchArrays::ended() {
  std::vector<BatchEnd> ended;
  if (steady_clock().now() < ask_at_) return ended;
  std::vector<std::string> arrays;
  for (const auto& one : arrays_) arrays.push_back(one.first);
  for (const std::string& array : arrays) ask(array, ended);
  ask_at_ = steady_clock().now() + kAskEvery;
  if (gone_by_ && ended.empty() && !arrays_.empty() && steady_clock().now() >= *gone_by_) {
    const auto& [array, submitted] = *arrays_.begin();
    throw PeerError(std::string(submitted.engine->title) + " still has runs of " + array +
                        ", which was cancelled " + printed("%.0f s", Seconds(patience_).count()) + " ago",
                    "look at it there; the same command goes on with the runs that have ended");
  }
  return ended;
}

void BatchArrays::stop(bool at_once) {
  stopped_ = true;
  for (const auto& [array, submitted] : arrays_) (void)submitted.engine->queue->stop(array, at_once);
  if (at_once && !gone_by_) gone_by_ = steady_clock().now() + patience_;
}

}  // namespace millrace
