#include "runtime/base/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/run_files.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

/// Members that the file lacks are zero or empty.
LockHolder holder_of(const fs::path& path) {
  LockHolder holder;
  const Result<Json> json = read_json(path.string());
  if (!json) return holder;
  if (const Json* run = json->find("run"); run && run->is_string()) holder.run = run->as_string();
  if (const Json* host = json->find("host"); host && host->is_string()) holder.host = host->as_string();
  if (const Json* pid = json->find("pid"); pid && pid->kind() == Json::Kind::Int) holder.pid = pid->as_int();
  return holder;
}

Problem in_use(const fs::path& folder, const LockHolder& holder) {
  std::string who = "another run";
  if (!holder.run.empty()) who = "run " + holder.run;
  if (holder.pid > 0) who += ", process " + std::to_string(holder.pid) + " on " + holder.host;
  return {folder.string(), "is in use by " + who, "wait for its end, stop it, or give another --output-dir"};
}

bool has_prefix(const fs::path& path, std::string_view prefix) {
  return path.filename().string().starts_with(prefix);
}

/// Returns the files and folders in `folder` whose names start with `prefix`, sorted by name.
std::vector<fs::path> entries(const fs::path& folder, std::string_view prefix) {
  std::vector<fs::path> result;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (has_prefix(entry.path(), prefix)) result.push_back(entry.path());
  }
  std::ranges::sort(result);
  return result;
}

/// Returns the checkpoints, oldest first, without unfinished ones (.tmp).
std::vector<fs::path> checkpoints_in(const fs::path& folder) {
  std::vector<fs::path> steps = entries(folder / run_files::kCheckpoints, "step-");
  std::erase_if(steps, [](const fs::path& step) { return step.has_extension(); });
  return steps;
}

/// The first line identifies the run; steps follow.
bool has_steps(const fs::path& log) {
  const Result<std::string> text = read_regular_file(log, kGiB);
  return !text || text->find("\"step\":") != std::string::npos;
}

}  // namespace

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

std::string new_run_id() {
  std::uint64_t value = 0;
  MILLRACE_CHECK(::getrandom(&value, sizeof value, 0) == static_cast<ssize_t>(sizeof value));
  return printed("%016llx", static_cast<unsigned long long>(value));
}

Result<RunLock> RunLock::acquire(const fs::path& folder, const std::string& run,
                                 const std::string& launched_run) {
  const fs::path path = folder / run_files::kLock;
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd < 0)
    return Problem{path.string(), std::string("cannot be opened: ") + std::strerror(errno),
                   "give a folder that you may write"};
  RunLock lock(fd);
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) {
      log_warning(path.string() + ": cannot be locked (" + std::strerror(errno) +
                  "): nothing keeps another run from writing into this folder");
      return lock;
    }
    const LockHolder holder = holder_of(path);
    if (!launched_run.empty() && holder.run == launched_run) return RunLock();
    return in_use(folder, holder);
  }
  const std::string text = Json::object({{"format", "millrace-lock-1"},
                                         {"run", run},
                                         {"pid", static_cast<std::int64_t>(::getpid())},
                                         {"host", host_name()}})
                               .dump() +
                           "\n";
  // The text is only for the message of the next process that tries the lock: the lock holds without it.
  if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, text.data(), text.size(), 0) < 0)
    log_warning(path.string() + ": " + std::strerror(errno));
  return lock;
}

RunLock::~RunLock() {
  if (fd_ >= 0) ::close(fd_);
}

RunLock::RunLock(RunLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

RunLock& RunLock::operator=(RunLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

std::vector<fs::path> rounds_in(const fs::path& folder) {
  std::map<int, fs::path> rounds;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const auto round = run_files::kRounds.rank_of(entry.path().filename().string());
    if (round && entry.is_directory(error)) rounds.emplace(*round, entry.path());
  }
  std::vector<fs::path> folders;
  for (const auto& [round, path] : rounds) folders.push_back(path);
  return folders;
}

fs::path newest_round(const fs::path& folder) {
  const std::vector<fs::path> rounds = rounds_in(folder);
  return rounds.empty() ? folder : rounds.back();
}

std::string earlier_run(const fs::path& folder) {
  std::vector<std::string> found;
  std::error_code error;
  const std::vector<fs::path> steps = checkpoints_in(folder);
  if (!steps.empty()) found.push_back("checkpoints up to " + steps.back().filename().string());
  if (std::ranges::any_of(entries(folder, run_files::kSteps.prefix), has_steps))
    found.push_back("logs of steps");
  if (fs::exists(folder / run_files::kSummary, error)) found.push_back("a summary");
  for (const fs::path& round : rounds_in(folder)) {
    if (const std::string of_round = earlier_run(round); !of_round.empty())
      found.push_back("in " + round.filename().string() + " " + of_round);
  }
  std::string text;
  for (const std::string& one : found) text += (text.empty() ? "" : ", ") + one;
  return text;
}

bool can_go_on(const fs::path& folder) {
  const std::vector<fs::path> rounds = rounds_in(folder);
  std::error_code error;
  const bool has_round = !rounds.empty() && fs::exists(rounds.front() / run_files::kSummary, error);
  return has_round || !checkpoints_in(newest_round(folder)).empty();
}

Status check_unused(const fs::path& folder) {
  const std::string found = earlier_run(folder);
  if (found.empty()) return Ok{};
  const std::string resume =
      can_go_on(folder) ? "--resume " + folder.string() + " goes on from its checkpoint, " : "";
  return Problem{folder.string(), "holds an earlier run: " + found,
                 resume + "--overwrite deletes it, or give another --output-dir"};
}

void write_failure(const fs::path& folder, const RunFailure& failure) {
  const Json json = Json::object({{"format", "millrace-failure-1"},
                                  {"rank", failure.rank},
                                  {"step", failure.step},
                                  {"exit_code", failure.exit_code},
                                  {"error", failure.error},
                                  {"hint", failure.hint}});
  const Status written =
      write_file_atomically(folder / run_files::kFailure.of(failure.rank), json.dump(1) + "\n");
  if (!written) log_warning(to_string(written.problems()));
}

std::optional<RunFailure> failure_of(const fs::path& folder) {
  using Order = std::tuple<bool, fs::file_time_type, int>;  // only lost its peer, write time, rank
  Order first;
  std::optional<RunFailure> root;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const auto rank = run_files::kFailure.rank_of(entry.path().filename().string());
    const Result<Json> json = rank ? read_json(entry.path().string()) : Result<Json>(Problem{});
    if (!rank || !json || !json->is_object()) continue;
    const auto text = [&](const char* key) {
      const Json* value = json->find(key);
      return value && value->is_string() ? value->as_string() : std::string();
    };
    const auto number = [&](const char* key) {
      const Json* value = json->find(key);
      return value && value->kind() == Json::Kind::Int ? value->as_int() : -1;
    };
    RunFailure found{.rank = *rank,
                     .step = number("step"),
                     .exit_code = static_cast<int>(number("exit_code")),
                     .error = text("error"),
                     .hint = text("hint")};
    std::error_code unknown;
    const Order order(found.exit_code == static_cast<int>(ExitCode::Peer),
                      fs::last_write_time(entry.path(), unknown), found.rank);
    if (root && !(order < first)) continue;
    first = order;
    root = std::move(found);
  }
  return root;
}

void remove_failures(const fs::path& folder) {
  std::error_code ignored;
  for (const fs::path& path : entries(folder, run_files::kFailure.prefix)) fs::remove(path, ignored);
  fs::remove(folder / run_files::kFailureSummary, ignored);
}

bool is_locked(const fs::path& folder) {
  const int fd = ::open((folder / run_files::kLock).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return false;
  const bool held = ::flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(fd);
  return held;
}

std::optional<LockHolder> lock_holder(const fs::path& folder) {
  if (!is_locked(folder)) return std::nullopt;
  return holder_of(folder / run_files::kLock);
}

void remove_unfinished(const fs::path& folder) {
  std::error_code ignored;
  for (const std::string_view prefix : std::initializer_list<std::string_view>{
           run_files::kPlan, run_files::kSchedule, run_files::kSummary, run_files::kSteps.prefix,
           run_files::kTrace.prefix, run_files::kProbe, "latest"}) {
    for (const fs::path& path : entries(folder, prefix)) {
      if (path.filename().string().find(".tmp.") != std::string::npos) fs::remove(path, ignored);
    }
  }
}

Status remove_earlier_run(const fs::path& folder) {
  for (const fs::path& round : rounds_in(folder)) {
    if (Status removed = remove_earlier_run(round); !removed) return removed;
    std::error_code ignored;
    for (const char* own : {run_files::kPlan, run_files::kLock}) fs::remove(round / own, ignored);
    fs::remove(round, ignored);  // succeeds if it is empty
  }
  std::vector<fs::path> doomed;
  const auto add = [&](const std::vector<fs::path>& more) {
    doomed.insert(doomed.end(), more.begin(), more.end());
  };
  // The pointer is deleted first, so that it never names a half-deleted checkpoint.
  for (const char* checkpoints : {run_files::kCheckpoints, run_files::kBest}) {
    add(entries(folder / checkpoints, "latest"));
    add(entries(folder / checkpoints, "step-"));
    add(entries(folder / checkpoints, run_files::kAbandoned.prefix));
  }
  for (const RankFiles& files : {run_files::kSteps, run_files::kTrace, run_files::kCounters,
                                 run_files::kStatus, run_files::kFailure, run_files::kFlight})
    add(entries(folder, files.prefix));
  // The folders themselves stay, because agents watch them.
  for (const fs::path& own : entries(folder, run_files::kHostCheckpoints.prefix)) add(entries(own, ""));
  doomed.push_back(folder / run_files::kSummary);
  doomed.push_back(folder / run_files::kFailureSummary);
  doomed.push_back(folder / run_files::kJobs);
  doomed.push_back(folder / run_files::kReport);
  doomed.push_back(folder / run_files::kBleu);
  add(entries(folder / run_files::kHypotheses, "step-"));
  for (const fs::path& path : doomed) {
    std::error_code error;
    fs::remove_all(path, error);
    if (error) return Problem{path.string(), "cannot be deleted: " + error.message(), {}};
  }
  sync_folder(folder);
  return Ok{};
}

}  // namespace millrace
