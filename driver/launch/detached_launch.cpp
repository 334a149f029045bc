#include "driver/launch/detached_launch.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include "driver/cli/command_support.h"
#include "driver/hosts/descriptor.h"
#include "driver/launch/console.h"
#include "driver/queues/shell_words.h"
#include "runtime/base/files.h"
#include "runtime/base/numbers.h"
#include "runtime/base/private_folder.h"
#include "runtime/base/run_folder.h"

extern char** environ;

namespace millrace {
namespace {

namespace fs = std::filesystem;

// The descriptor to which a detached launch writes a byte when its ranks have been started.
constexpr const char* kStarted = "MILLRACE_STARTED_FD";
constexpr int kStartedDescriptor = 3;
constexpr std::chrono::milliseconds kPatience{180'000};  // above the deadlines of hosts

/// Returns the error of posix_spawn, or 0.
int spawn(std::vector<std::string> words, const fs::path& out, const fs::path& err, int started, pid_t& pid) {
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_APPEND;
  ::posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&files, 1, out.c_str(), flags, 0644);
  ::posix_spawn_file_actions_addopen(&files, 2, err.c_str(), flags, 0644);
  ::posix_spawn_file_actions_adddup2(&files, started, kStartedDescriptor);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const int error = ::posix_spawn(&pid, words.front().c_str(), &files, &attributes, argv.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
  return error;
}

}  // namespace

int launch_detached(const JobSpec& job, const std::vector<std::string>& command) {
  if (const Status made = make_private_folder(job.output_dir); !made)
    return exit_with(ExitCode::Usage, made.problems());
  // Its messages would go over those of the run that holds the folder.
  if (const auto holder = lock_holder(job.output_dir))
    return exit_with(ExitCode::Usage, {{job.output_dir, "is in use by run " + holder->run,
                                        "wait for its end, stop it, or give another --output-dir"}});
  const fs::path folder = job.output_dir, err = folder / "launch.err";
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return exit_with(ExitCode::RunFailed, {{"pipe", std::strerror(errno), {}}});
  const Descriptor started(ends[0]);
  Descriptor to_tell(ends[1]);
  // The same number would stay closed on exec.
  if (to_tell.get() == kStartedDescriptor) to_tell = Descriptor(::fcntl(ends[1], F_DUPFD_CLOEXEC, 10));
  ::setenv(kStarted, std::to_string(kStartedDescriptor).c_str(), 1);
  pid_t pid = -1;
  const int error = spawn(command, folder / "launch.out", err, to_tell.get(), pid);
  if (error != 0) return exit_with(ExitCode::RunFailed, {{command.front(), std::strerror(error), {}}});
  to_tell.close();
  pollfd polled{started.get(), POLLIN, 0};
  char byte = 0;
  const bool told = ::poll(&polled, 1, static_cast<int>(kPatience.count())) > 0;
  if (told && ::read(started.get(), &byte, 1) == 0) {  // its end without a byte
    int status = 0;
    ::waitpid(pid, &status, 0);
    if (const Result<std::string> said = read_regular_file(err)) print_without_waiting(STDERR_FILENO, *said);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  const std::string out = quoted(job.output_dir);
  print_without_waiting(STDERR_FILENO, "millrace launch: process " + std::to_string(pid) +
                                           " runs the job\nlook: millrace status " + out +
                                           ", millrace logs " + out + " -f; end: millrace stop " + out +
                                           "\n");
  return 0;
}

std::function<void()> started_teller() {
  const char* number = std::getenv(kStarted);
  if (!number) return {};
  ::unsetenv(kStarted);
  const auto descriptor = std::make_shared<Descriptor>(number_of<int>(number).value_or(-1));
  ::fcntl(descriptor->get(), F_SETFD, FD_CLOEXEC);  // not for the ranks
  return [descriptor] {
    [[maybe_unused]] const ssize_t n = ::write(descriptor->get(), "s", 1);
    descriptor->close();
  };
}

}  // namespace millrace
