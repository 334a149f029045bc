#include "driver/hosts/rank_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string_view>

#include "runtime/base/error.h"

namespace millrace {
namespace {

constexpr int kOrdersDescriptor = 3;  // in the process

[[noreturn]] void throw_errno(const std::string& what, int error = errno) {
  throw ConfigError(what + ": " + std::strerror(error));
}

/// Started by nohup: the job is to outlive its terminal.
bool ignores_hangup() {
  struct sigaction now {};
  return ::sigaction(SIGHUP, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

std::vector<std::string> environment_with(const std::vector<std::pair<std::string, std::string>>& added) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    const bool replaced =
        std::any_of(added.begin(), added.end(), [&](const auto& a) { return a.first == name; });
    if (!replaced) result.emplace_back(text);
  }
  for (const auto& [name, value] : added) result.push_back(name + "=" + value);
  return result;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

/// File actions and attributes of posix_spawn with their destructors.
struct SpawnSettings {
  posix_spawn_file_actions_t files{};
  posix_spawnattr_t attributes{};
  SpawnSettings(int in, int out, int err, int orders, const sigset_t& mask) {
    ::posix_spawn_file_actions_init(&files);
    if (in >= 0)
      ::posix_spawn_file_actions_adddup2(&files, in, 0);
    else
      ::posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&files, out, 1);
    ::posix_spawn_file_actions_adddup2(&files, err, 2);
    if (orders >= 0)
      ::posix_spawn_file_actions_adddup2(&files, orders, kOrdersDescriptor);  // last: it may be `out`
    ::posix_spawnattr_init(&attributes);
    sigset_t defaults;
    sigemptyset(&defaults);
    for (int signal : {SIGPIPE, SIGCHLD, SIGINT, SIGTERM, SIGUSR1}) sigaddset(&defaults, signal);
    if (!ignores_hangup()) sigaddset(&defaults, SIGHUP);
    ::posix_spawnattr_setsigdefault(&attributes, &defaults);
    ::posix_spawnattr_setsigmask(&attributes, &mask);
    // A session of its own also gives each rank its own share of a busy machine, where the kernel shares by
    // session (sched_autogroup).
    ::posix_spawnattr_setflags(&attributes,
                               POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;
  ~SpawnSettings() {
    ::posix_spawn_file_actions_destroy(&files);
    ::posix_spawnattr_destroy(&attributes);
  }
};

struct Pipe {
  Descriptor read;
  Descriptor write;
};

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno("pipe");
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

/// Both ends read and write.
Pipe make_socket() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw_errno("socketpair");
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

}  // namespace

SignalGuard::SignalGuard() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGCHLD, SIGINT, SIGTERM, SIGUSR1}) sigaddset(&set, signal);
  if (!ignores_hangup()) sigaddset(&set, SIGHUP);
  ::sigprocmask(SIG_BLOCK, &set, &old_mask_);
  // An ignored SIGCHLD (inherited) would make exit codes vanish; SIGPIPE would end the supervisor with its
  // console.
  struct sigaction plain {};
  plain.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &plain, &old_child_);
  plain.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &plain, &old_pipe_);
  ::sigaction(SIGXFSZ, &plain, &old_size_);  // a log that grows over a limit must not, either
  descriptor_ = Descriptor(::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!descriptor_.is_open()) {
    const int error = errno;
    restore();
    throw_errno("signalfd", error);
  }
}

void SignalGuard::restore() {
  ::sigaction(SIGCHLD, &old_child_, nullptr);
  ::sigaction(SIGPIPE, &old_pipe_, nullptr);
  ::sigaction(SIGXFSZ, &old_size_, nullptr);
  ::sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
}

std::vector<int> SignalGuard::read() const {
  std::vector<int> signals;
  signalfd_siginfo info;
  while (::read(descriptor_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    if (const int signal = static_cast<int>(info.ssi_signo); signal != SIGCHLD) signals.push_back(signal);
  }
  return signals;
}

ChildProcess start_child(const std::string& what, const std::vector<std::string>& argv,
                         const std::vector<std::pair<std::string, std::string>>& environment,
                         const sigset_t& mask, ChildInput input) {
  Pipe in, orders, out = make_pipe(), err = make_pipe();
  if (input == ChildInput::Pipe) in = make_pipe();
  if (input == ChildInput::Orders) orders = make_socket();
  const SpawnSettings settings(in.read.get(), out.write.get(), err.write.get(), orders.read.get(), mask);
  auto added = environment;
  if (input == ChildInput::Orders)
    added.emplace_back(kOrders, std::to_string(kOrdersDescriptor));
  else if (std::getenv(kOrders))
    added.emplace_back(kOrders, "");  // of this process alone
  std::vector<std::string> words = argv, variables = environment_with(added);
  ChildProcess child;
  const int error = ::posix_spawnp(&child.pid, words.at(0).c_str(), &settings.files, &settings.attributes,
                                   pointers(words).data(), pointers(variables).data());
  if (error != 0) throw_errno(what + " cannot be started (" + argv[0] + ")", error);
  for (const Descriptor* end : {&out.read, &err.read}) ::fcntl(end->get(), F_SETFL, O_NONBLOCK);
  child.in = std::move(in.write);
  child.orders = std::move(orders.write);
  child.argv = argv;
  child.out = std::move(out.read);
  child.err = std::move(err.read);
  return child;
}

std::optional<ChildEnd> end_of(pid_t pid) {
  // Look before taking: while the leader is a zombie, its group's number belongs to nobody else, so that what
  // is left of the group can be ended safely.
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != pid)
    return std::nullopt;
  ::kill(-pid, SIGKILL);
  int status = 0;
  if (::waitpid(pid, &status, 0) != pid) return std::nullopt;
  return ChildEnd{.status = WIFEXITED(status) ? WEXITSTATUS(status) : 0,
                  .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0};
}

bool is_suspended(pid_t pid) {
  std::string stat;
  std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/stat"), stat);
  const std::size_t end = stat.rfind(')');  // of the program's name, which may hold anything
  return end != std::string::npos && end + 2 < stat.size() && (stat[end + 2] == 'T' || stat[end + 2] == 't');
}

}  // namespace millrace
