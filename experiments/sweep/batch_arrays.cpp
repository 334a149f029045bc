#include "experiments/sweep/batch_arrays.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "driver/launch/shell_words.h"
#include "experiments/sweep/own_queues.h"
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

/// What a task of the array does, as a branch of the script. exec: signals reach the launcher.
std::string branch_of(const BatchQueue& queue, const BatchRun& run, std::size_t task) {
  const fs::path folder = fs::absolute(run.job.output_dir);
  std::string text = std::to_string(task) + ")\n  exec >>" + quoted((folder / kOut).string()) + " 2>>" +
                     quoted((folder / kErr).string()) + "\n";
  std::vector<std::string> words = queue.launch(), before = run.before;
  // A program of an image is found by its name.
  if (!before.empty() && !words.front().starts_with('/'))
    before.front() = fs::path(before.front()).filename().string();
  if (!before.empty()) text += "  " + command_line(before) + " || exit\n";
  words.insert(words.end(), {(folder / kJobFile).string(), std::string("--on=") + queue.launch_on,
                             "--output-dir", run.job.output_dir});
  return text + "  exec " + command_line(words) + "\n  ;;\n";
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

const BatchQueue* queue_of(const JobSpec& job) {
  for (const BatchQueue* queue : {&kSlurmQueue, &kKubernetesQueue})
    if (job.hosts.on == queue->engine && queue->takes(job)) return queue;
  return nullptr;
}

BatchArrays::~BatchArrays() {
  stop(true);
}

void BatchArrays::submit(const std::vector<BatchRun>& runs) {
  std::map<std::pair<const BatchQueue*, std::string>, std::vector<const BatchRun*>> alike;
  for (const BatchRun& run : runs) {
    const BatchQueue* queue = queue_of(run.job);
    alike[{queue, queue->requests(run.job)}].push_back(&run);
  }
  for (const auto& [key, all] : alike) {
    for (std::size_t at = 0; at < all.size(); at += kMostTasks)
      submit_array(*key.first,
                   {all.begin() + static_cast<std::ptrdiff_t>(at),
                    all.begin() + static_cast<std::ptrdiff_t>(std::min(all.size(), at + kMostTasks))});
  }
}

void BatchArrays::submit_array(const BatchQueue& queue, const std::vector<const BatchRun*>& runs) {
  std::string script = std::string("case $") + queue.task_variable + " in\n";
  for (std::size_t task = 0; task < runs.size(); ++task) {
    const fs::path folder = runs[task]->job.output_dir;
    Status written = make_writable_folder(folder);
    // Words of an earlier try would be taken for this one's.
    std::error_code ignored;
    for (const char* name : {kOut, kErr}) fs::remove(folder / name, ignored);
    JobSpec job = runs[task]->job;
    if (job.hosts.on != queue.launch_on) job.hosts = {};  // its ranks stay together where the queue puts them
    if (written) written = write_file_atomically(folder / kJobFile, to_yaml(job));
    if (!written) throw ConfigError(to_string(written.problems()));
    script += branch_of(queue, *runs[task], task);
  }
  const Result<std::string> array = queue.submit(runs.front()->job, static_cast<int>(runs.size()),
                                                 script + "esac\n", runs.front()->job.output_dir);
  if (!array) throw ConfigError(to_string(array.problems()));
  arrays_[*array] = &queue;
  for (std::size_t task = 0; task < runs.size(); ++task)
    tasks_[{*array, static_cast<int>(task)}] = {
        .id = runs[task]->id, .folder = runs[task]->job.output_dir, .started = {}};
}

BatchEnd BatchArrays::end_of(const Task& task, const TaskRecord& record, const char* queue) const {
  BatchEnd end{.id = task.id, .exit_code = record.exit_code, .error = {}};
  if (task.started) end.run_s = Seconds(steady_clock().now() - *task.started).count();
  if (end.exit_code == 0) return end;
  end.error = last_words(task.folder);
  if (!record.reason.empty()) end.error = std::string(queue) + ": " + record.reason + "; " + end.error;
  return end;
}

void BatchArrays::ask(const std::string& array, std::vector<BatchEnd>& ended) {
  const BatchQueue& queue = *arrays_.at(array);
  const Result<std::vector<TaskRecord>> records = queue.ask(array);
  if (!records) {
    if (++silent_[array] < kMostSilentAnswers) return;
    throw PeerError(
        std::string(queue.name) + " says nothing of " + array + ": " + to_string(records.problems()),
        "the same command goes on with the runs that have ended");
  }
  silent_[array] = 0;
  std::set<int> told;
  for (const TaskRecord& record : *records) {
    const auto task = tasks_.find({array, record.task});
    if (task == tasks_.end()) continue;
    told.insert(record.task);
    if (record.is_running && !task->second.started) task->second.started = steady_clock().now();
    if (!record.is_over) continue;
    ended.push_back(end_of(task->second, record, queue.name));
    tasks_.erase(task);
  }
  // Where tasks that are cancelled leave no record.
  for (auto task = tasks_.lower_bound({array, 0});
       stopped_ && task != tasks_.end() && task->first.first == array;) {
    const bool gone = !told.contains(task->first.second);
    if (gone)
      ended.push_back({.id = task->second.id, .exit_code = static_cast<int>(ExitCode::Requeue), .error = {}});
    task = gone ? tasks_.erase(task) : std::next(task);
  }
  const auto left = tasks_.lower_bound({array, 0});
  if (left != tasks_.end() && left->first.first == array) return;
  queue.clean_up(array);
  arrays_.erase(array);
}

std::vector<BatchEnd> BatchArrays::ended() {
  std::vector<BatchEnd> ended;
  if (steady_clock().now() < ask_at_) return ended;
  std::vector<std::string> arrays;
  for (const auto& [array, queue] : arrays_) arrays.push_back(array);
  for (const std::string& array : arrays) ask(array, ended);
  ask_at_ = steady_clock().now() + kAskEvery;
  if (gone_by_ && ended.empty() && !arrays_.empty() && steady_clock().now() >= *gone_by_) {
    const auto& [array, queue] = *arrays_.begin();
    throw PeerError(std::string(queue->name) + " still has runs of " + array + ", which was cancelled " +
                        printed("%.0f s", Seconds(patience_).count()) + " ago",
                    "look at it there; the same command goes on with the runs that have ended");
  }
  return ended;
}

void BatchArrays::stop(bool at_once) {
  stopped_ = true;
  for (const auto& [array, queue] : arrays_) queue->stop(array, at_once);
  if (at_once && !gone_by_) gone_by_ = steady_clock().now() + patience_;
}

}  // namespace millrace
