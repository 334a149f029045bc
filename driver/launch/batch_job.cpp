#include "driver/launch/batch_job.h"

#include <linux/magic.h>
#include <poll.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "driver/hosts/rank_process.h"
#include "driver/launch/console.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "runtime/base/private_folder.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr int kFollowMs = 500;        // how late output is shown
constexpr int kPollsPerQuestion = 4;  // the queue is asked every two seconds
constexpr int kMostSilentAnswers = 30;

constexpr const char* kBatchJob = "batch.json";  // in the output folder

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

void say(const std::string& line) {
  print_without_waiting(STDERR_FILENO, "millrace launch: " + line + "\n");
}

/// Shows the user the state of a batch job when it changes.
class BatchState {
 public:
  explicit BatchState(const BatchJob& job) : job_(job) {}

  /// Asks, and tells the user what has changed. Returns false if the queue has said nothing for a minute: a
  /// controller that is started again answers after a while.
  bool ask() {
    const Result<std::optional<QueueRecord>> answer = job_.ask();
    if (!answer) {
      if (++silent_ < kMostSilentAnswers) return true;
      say(std::string(job_.engine->title) + " says nothing of batch job " + job_.id + ": " +
          to_string(answer.problems()));
      return false;
    }
    silent_ = 0;
    record_ = answer->value_or(QueueRecord{});
    if (record_.state != std::exchange(shown_, record_.state)) say("batch job " + job_.id + " is " + shown_);
    return true;
  }
  bool is_over() const { return record_.is_over; }
  int exit_code() const { return record_.exit_code; }

  /// Tells the launcher inside to save and end; cancels a job that does not run yet, or `at_once`.
  void stop(bool at_once) const {
    say("batch job " + job_.id +
        (record_.is_running && !at_once ? " is told to save and end; a second signal cancels it"
                                        : " is cancelled"));
    if (const Status told = stop_batch_job(job_, record_, at_once); !told) say(to_string(told.problems()));
  }

 private:
  const BatchJob& job_;
  std::string shown_;
  QueueRecord record_;
  int silent_ = 0;
};

}  // namespace

std::string BatchJob::output(const char* stream) const {
  return (folder / (std::string(engine->name) + "-" + id + "." + stream)).string();
}

Result<std::optional<QueueRecord>> BatchJob::ask() const {
  const Result<std::vector<QueueRecord>> records = engine->queue->ask(id, folder);
  if (!records) return records.problems();
  return records->empty() ? std::optional<QueueRecord>() : records->front();
}

Result<BatchJob> submit_batch_job(const JobSpec& job, const Engine& engine,
                                  const std::vector<std::string>& launch) {
  std::error_code ignored;
  // It becomes a line of the script.
  if (const std::string here = fs::current_path(ignored).string(); escaped(here) != here)
    return Problem{"the current folder", "'" + escaped(here) + "' cannot stand in a batch script",
                   "go to another folder"};
  if (Status made = make_private_folder(job.output_dir); !made) return made.problems();
  const std::string path = (fs::path(job.output_dir) / "job.").string() + engine.queue->extension;
  const Result<std::string> script = engine.queue->script(job, launch);
  if (!script) return script.problems();
  if (Status written = write_file_atomically(path, *script); !written) return written.problems();
  const Result<std::string> id = engine.queue->submit(path);
  if (!id) return id.problems();
  const Json record =
      Json::object({{"format", "millrace-batch-1"}, {"scheduler", engine.name}, {"job", *id}});
  if (Status written = write_file_atomically(fs::path(job.output_dir) / kBatchJob, record.dump() + "\n");
      !written)
    say(to_string(written.problems()));
  if (struct statfs info{}; ::statfs(job.output_dir.c_str(), &info) == 0 && info.f_type == TMPFS_MAGIC)
    say("warning: " + job.output_dir +
        " is in the memory of this machine: other nodes do not see it. Hint: give an " +
        "--output-dir on a file system that all nodes share");
  return BatchJob{&engine, *id, fs::absolute(job.output_dir)};
}

std::optional<BatchJob> submitted_batch_job(const fs::path& folder) {
  const Result<Json> json = read_json((folder / kBatchJob).string());
  const auto text = [&](const char* key) {
    const Json* found = json && json->is_object() ? json->find(key) : nullptr;
    return found && found->is_string() ? found->as_string() : "";
  };
  const Engine* engine = find_engine(text("scheduler"));
  const std::string id = text("job");
  if (!engine || !engine->queue || id.empty() || !std::isdigit(static_cast<unsigned char>(id.front())))
    return std::nullopt;
  return BatchJob{engine, id, fs::absolute(folder)};
}

Status stop_batch_job(const BatchJob& job, const QueueRecord& record, bool at_once) {
  return job.engine->queue->stop(job.id, at_once || !record.is_running);
}

int follow_batch_job(const BatchJob& job) {
  const SignalGuard signals;
  GrowingFile out(job.output("out"), STDOUT_FILENO), err(job.output("err"), STDERR_FILENO);
  BatchState state(job);
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
      if (state.exit_code() != 0 && !fs::exists(job.output("out"), ignored))
        say("batch job " + job.id + " has left no output: do its nodes see " + job.folder.string() +
            "? Hint: give an --output-dir on a file system that all share");
      return state.exit_code();
    }
    if (came.empty()) continue;
    state.stop(stopped || came.size() > 1);
    stopped = true;
  }
}

}  // namespace millrace
