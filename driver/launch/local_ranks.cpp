#include "driver/launch/local_ranks.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "driver/launch/console.h"
#include "driver/launch/task_environment.h"
#include "runtime/base/error.h"

namespace millrace {

namespace {

namespace fs = std::filesystem;

constexpr const char* kStorePrefix = "millrace-store-";
constexpr const char* kLockName = ".lock";

/// Returns an open descriptor that holds the lock of `file`; -1 if somebody else does, or it cannot be had.
int locked(const fs::path& file, int flags) {
  const int fd = ::open(file.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
  if (fd >= 0 && ::flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  if (fd >= 0) ::close(fd);
  return -1;
}

/// Locks a new folder. The lock has its name only when it is held: a folder whose lock is free is abandoned.
int lock_new_folder(const fs::path& folder) {
  const fs::path unnamed = folder / ".lock.new";
  const int fd = locked(unnamed, O_CREAT | O_EXCL);
  if (fd >= 0) ::rename(unnamed.c_str(), (folder / kLockName).c_str());
  return fd;
}

/// Folders of launchers of this user that were killed before their ranks had met.
void remove_abandoned_folders() {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(fs::temp_directory_path(), ignored)) {
    struct stat info {};
    if (entry.path().filename().string().rfind(kStorePrefix, 0) != 0) continue;
    if (::lstat(entry.path().c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != ::geteuid() ||
        (info.st_mode & 077) != 0)
      continue;
    const int lock = locked(entry.path() / kLockName, 0);
    if (lock < 0) continue;
    fs::remove_all(entry.path(), ignored);
    ::close(lock);
  }
}

}  // namespace

StoreFolder::StoreFolder()
    : path_((fs::temp_directory_path() / (std::string(kStorePrefix) + "XXXXXX")).string()) {
  remove_abandoned_folders();
  if (!::mkdtemp(path_.data())) {
    throw ConfigError(path_ + ": cannot be created: " + std::strerror(errno),
                      "set TMPDIR to a folder that you may write");
  }
  lock_ = lock_new_folder(path_);
}

StoreFolder::~StoreFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  if (lock_ >= 0) ::close(lock_);
}

std::vector<std::pair<std::string, std::string>> rank_environment(int rank, int ranks,
                                                                  const std::string& store) {
  const std::string number = std::to_string(rank), size = std::to_string(ranks);
  return {{"RANK", number},
          {"LOCAL_RANK", number},
          {"WORLD_SIZE", size},
          {"LOCAL_WORLD_SIZE", size},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", "29500"},  // torchrun's; the store replaces it
          {"MILLRACE_STORE", store},
          {"MILLRACE_LAUNCHER_PID", std::to_string(::getpid())}};
}

namespace {

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value && *value;
}

std::vector<RankProcess> processes_of(const std::vector<std::string>& words, int ranks, int threads,
                                      const std::string& store) {
  std::vector<RankProcess> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    RankProcess process{.rank = rank, .argv = words};
    process.environment = rank_environment(rank, ranks, store);
    if (!is_set("OMP_NUM_THREADS"))
      process.environment.emplace_back("OMP_NUM_THREADS", std::to_string(threads));
    processes.push_back(std::move(process));
  }
  return processes;
}

}  // namespace

void explain_failure(const std::string& command, const LaunchOutcome& outcome) {
  if (outcome.first_failure < 0) {
    if (outcome.interrupt != 0)
      std::fprintf(stderr, "millrace %s: stopped by %s\n", command.c_str(),
                   signal_text(outcome.interrupt).c_str());
    return;
  }
  const RankExit& first = outcome.exits.at(outcome.first_failure);
  if (is_refusal(first)) return;
  std::fprintf(stderr,
               "\nmillrace %s: rank %d failed first: %s, %.1f s after the start; no file was written\n",
               command.c_str(), first.rank, end_text(first).c_str(), first.after_s);
  for (const std::string& line : first.last_lines)
    std::fprintf(stderr, "    | %s\n", on_terminal(line).c_str());
}

bool is_refusal(const RankExit& exit) {
  return exit.signal == 0 && exit.status == static_cast<int>(ExitCode::Usage);
}

bool is_rank_of_a_job() {
  if (is_set("RANK") || is_set("WORLD_SIZE") || is_task_of_pmix()) return true;
  const Result<std::optional<TaskPlace>> task = task_of_environment();
  return !task || task->has_value();
}

int run_command_ranks(const std::string& worker, const std::string& command,
                      const std::vector<std::string>& args, int ranks, int threads) {
  std::vector<std::string> words{worker, command};
  words.insert(words.end(), args.begin(), args.end());
  const StoreFolder store;
  SteadyClock clock;
  const LaunchOutcome outcome = run_ranks(processes_of(words, ranks, threads, store.path()), {}, clock);
  explain_failure(command, outcome);
  return outcome.exit_code();
}

std::string signal_text(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return "signal " + std::to_string(signal) + (name ? std::string(" (SIG") + name + ")" : "");
}

std::string end_text(const RankExit& exit) {
  if (!exit.lost.empty()) return exit.lost;
  if (exit.is_kept) return "lost its peer, and waits";
  if (exit.signal != 0) return "killed by " + signal_text(exit.signal);
  return exit.status == 0 ? "done" : "exit code " + std::to_string(exit.status);
}

}  // namespace millrace
