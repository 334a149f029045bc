#include "driver/launch/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <optional>

#include "driver/launch/console.h"
#include "runtime/base/error.h"
#include "runtime/base/units.h"

namespace millrace {
namespace {

constexpr std::size_t kKeptLines = 4;          // of stderr, for the failure summary
constexpr std::size_t kLongestLine = 1 << 16;  // a longer one is passed on in pieces
// Waking up early costs nothing; it guards against a SIGCHLD that another part of the process swallowed.
constexpr int kLongestPollMs = 1000;
// How long the end waits for who reads results, and the story, if he takes nothing.
constexpr std::chrono::milliseconds kResultsPatience{5000}, kStoryPatience{1000};
// As long as ranks get on after a stop signal they are let: so many times the grace at most.
constexpr int kMostGraces = 4;

// ---- small owners
// -------------------------------------------------------------------------------------------

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() { close(); }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_;
};

[[noreturn]] void throw_errno(const std::string& what, int error = errno) {
  throw ConfigError(what + ": " + std::strerror(error));
}

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // a closed console or a full disk must not stop the job
    text.remove_prefix(n);
  }
}

/// Started by nohup: the job is to outlive its terminal.
bool ignores_hangup() {
  struct sigaction now {};
  return ::sigaction(SIGHUP, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

/// Blocks the signals that the launcher reads through a descriptor; the destructor restores everything.
class SignalGuard {
 public:
  SignalGuard() {
    sigset_t set;
    sigemptyset(&set);
    for (int signal : {SIGCHLD, SIGINT, SIGTERM}) sigaddset(&set, signal);
    if (!ignores_hangup()) sigaddset(&set, SIGHUP);
    ::sigprocmask(SIG_BLOCK, &set, &old_mask_);
    // An ignored SIGCHLD (inherited) would make exit codes vanish; SIGPIPE would end the launcher with its
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
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;
  ~SignalGuard() { restore(); }
  int descriptor() const { return descriptor_.get(); }
  const sigset_t& old_mask() const { return old_mask_; }

 private:
  void restore() {
    ::sigaction(SIGCHLD, &old_child_, nullptr);
    ::sigaction(SIGPIPE, &old_pipe_, nullptr);
    ::sigaction(SIGXFSZ, &old_size_, nullptr);
    ::sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
  }
  Descriptor descriptor_;
  sigset_t old_mask_{};
  struct sigaction old_child_ {};
  struct sigaction old_pipe_ {};
  struct sigaction old_size_ {};
};

/// The refusals (`error: ...`, `Hint: ...`) that ranks have printed. Every rank checks the job, so all of
/// them may refuse it in the same words: the console shows those once.
class Refusals {
 public:
  /// Whether no other rank has printed `line`; true for any line that is no refusal.
  bool is_new(int rank, const std::string& line) {
    if (!line.starts_with("error: ") && !line.starts_with("Hint: ")) return true;
    return first_.try_emplace(line, rank).first->second == rank;
  }

 private:
  std::map<std::string, int> first_;  ///< line -> the rank that printed it first
};

/// One output stream of a rank: raw into the log, line by line to the console.
class Stream {
 public:
  Stream(Descriptor pipe, Descriptor log, Console& console, std::string prefix, int rank,
         Refusals* refusals = nullptr)
      : pipe_(std::move(pipe)),
        log_(std::move(log)),
        console_(&console),
        prefix_(std::move(prefix)),
        rank_(rank),
        refusals_(refusals) {}

  int descriptor() const { return pipe_.get(); }
  bool is_open() const { return pipe_.is_open(); }

  /// Takes what is there; closes at the end of the stream.
  void drain() {
    char buffer[1 << 15];
    while (is_open()) {
      const ssize_t n = ::read(pipe_.get(), buffer, sizeof buffer);
      if (n > 0) {
        take({buffer, static_cast<std::size_t>(n)});
      } else if (n < 0 && errno == EINTR) {
        continue;
      } else if (n < 0 && errno == EAGAIN) {
        return;
      } else {
        finish();
      }
    }
  }

  /// The process is gone: what it wrote is in the pipe. A grandchild may hold the other end for ever.
  void finish() {
    if (!is_open()) return;
    pipe_.close();
    if (!pending_.empty()) pass_on(std::exchange(pending_, {}));
  }

  std::vector<std::string> last_lines() const { return {lines_.begin(), lines_.end()}; }

 private:
  void take(std::string_view bytes) {
    if (log_.is_open()) write_all(log_.get(), bytes);
    pending_ += bytes;
    std::size_t start = 0;
    for (std::size_t end; (end = pending_.find('\n', start)) != std::string::npos; start = end + 1) {
      pass_on(pending_.substr(start, end - start));
    }
    pending_.erase(0, start);
    if (pending_.size() > kLongestLine) pass_on(std::exchange(pending_, {}));
  }

  void pass_on(const std::string& line) {
    // The log lines of a rank name it themselves.
    const bool named = prefix_.empty() || line.rfind("[rank", 0) == 0;
    if (!refusals_ || refusals_->is_new(rank_, line)) console_->print(named ? line : prefix_ + line);
    if (line.empty()) return;
    lines_.push_back(line);
    if (lines_.size() > kKeptLines) lines_.pop_front();
  }

  Descriptor pipe_;
  Descriptor log_;
  Console* console_;
  std::string prefix_;
  int rank_;
  Refusals* refusals_;
  std::string pending_;
  std::deque<std::string> lines_;
};

// ---- starting
// -----------------------------------------------------------------------------------------------

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
  SpawnSettings(int out, int err, const sigset_t& mask) {
    ::posix_spawn_file_actions_init(&files);
    ::posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&files, out, 1);
    ::posix_spawn_file_actions_adddup2(&files, err, 2);
    ::posix_spawnattr_init(&attributes);
    sigset_t defaults;
    sigemptyset(&defaults);
    for (int signal : {SIGPIPE, SIGCHLD, SIGINT, SIGTERM}) sigaddset(&defaults, signal);
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
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

Descriptor open_log(const std::string& path, bool append) {
  const int fd =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_APPEND | (append ? 0 : O_TRUNC), 0644);
  if (fd < 0) throw_errno(path + " cannot be created");
  return Descriptor(fd);
}

// ---- the loop
// -----------------------------------------------------------------------------------------------

struct Running {
  RankExit result;
  Stream out;
  Stream err;
  bool alive = true;
};

class Launch {
 public:
  Launch(const LaunchOptions& options, Clock& clock)
      : options_(options),
        clock_(clock),
        start_(clock.now()),
        out_(options.out, Console::kResults),
        err_(options.err, Console::kStory) {}
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;
  /// Only with live processes when something was thrown.
  ~Launch() {
    send(SIGKILL);
    for (Running& rank : ranks_) {
      if (rank.alive) ::waitpid(rank.result.pid, nullptr, 0);
    }
  }

  void start(const RankProcess& process) {
    Pipe out = make_pipe(), err = make_pipe();
    Descriptor out_log, err_log;
    if (!process.log.empty()) {
      out_log = open_log(process.log + ".out", options_.append_logs);
      err_log = open_log(process.log + ".err", options_.append_logs);
    }
    const SpawnSettings settings(out.write.get(), err.write.get(), signals_.old_mask());
    std::vector<std::string> argv = process.argv, environment = environment_with(process.environment);
    pid_t pid = -1;
    const int error = ::posix_spawn(&pid, argv.at(0).c_str(), &settings.files, &settings.attributes,
                                    pointers(argv).data(), pointers(environment).data());
    if (error != 0)
      throw_errno("rank " + std::to_string(process.rank) + " cannot be started (" + argv[0] + ")", error);
    ranks_.push_back(
        {.result = {.rank = process.rank, .stage = process.stage, .pid = pid},
         .out = Stream(std::move(out.read), std::move(out_log), out_, "", process.rank),
         .err = Stream(std::move(err.read), std::move(err_log), err_,
                       "[rank " + std::to_string(process.rank) + "] ", process.rank, &refusals_)});
  }

  LaunchOutcome run() {
    while (any_alive()) {
      wait_for_events();
      allow_for_progress();
      kill_when_due();
      out_.flush();
      err_.flush();
      for (Running& rank : ranks_) {
        rank.out.drain();
        rank.err.drain();
      }
      read_signals();
      reap();
    }
    err_.finish(kStoryPatience, signals_.descriptor());
    if (!out_.finish(kResultsPatience, signals_.descriptor()))
      err_.write("millrace: nobody reads the results; what is missing is in the logs\n");
    return outcome();
  }

 private:
  bool any_alive() const {
    return std::any_of(ranks_.begin(), ranks_.end(), [](const Running& r) { return r.alive; });
  }

  void wait_for_events() {
    std::vector<pollfd> polled{{.fd = signals_.descriptor(), .events = POLLIN, .revents = 0}};
    for (const Running& rank : ranks_) {
      for (const Stream* stream : {&rank.out, &rank.err}) {
        if (stream->is_open()) polled.push_back({.fd = stream->descriptor(), .events = POLLIN, .revents = 0});
      }
    }
    for (const Console* console : {&out_, &err_}) {
      if (console->is_waiting())
        polled.push_back({.fd = console->descriptor(), .events = POLLOUT, .revents = 0});
    }
    int timeout = kLongestPollMs;
    if (kill_at_) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*kill_at_ - clock_.now()).count();
      timeout = static_cast<int>(std::clamp<std::int64_t>(left, 0, kLongestPollMs));
    }
    ::poll(polled.data(), polled.size(), timeout);
  }

  void read_signals() {
    signalfd_siginfo info;
    while (::read(signals_.descriptor(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
      const int signal = static_cast<int>(info.ssi_signo);
      if (signal != SIGCHLD) interrupt(signal);
    }
  }

  void interrupt(int signal) {
    // A terminal that closes may say so twice.
    if (signal == SIGHUP && (interrupt_ != 0 || stopping_)) return;
    if (interrupt_ != 0 || stopping_) {  // the second one: at once
      if (interrupt_ == 0) interrupt_ = signal;
      finishing_ = false;
      kill_at_ = clock_.now();
      return;
    }
    interrupt_ = signal;
    stop(signal, options_.interrupt_grace);
    let_finish();
  }

  /// The ranks are about to save their state: until the grace is over, and longer while they get on.
  void let_finish() {
    stopping_ = true;
    finishing_ = true;
    kill_at_ = clock_.now() + options_.interrupt_grace;
    finish_by_ = clock_.now() + kMostGraces * options_.interrupt_grace;
    if (options_.progress) seen_ = options_.progress();
  }

  void allow_for_progress() {
    if (!finishing_ || !kill_at_ || !options_.progress) return;
    if (std::string now = options_.progress(); now != seen_) {
      seen_ = std::move(now);
      kill_at_ = std::min(finish_by_, clock_.now() + options_.interrupt_grace);
    }
  }

  void stop(int signal, std::chrono::milliseconds grace) {
    stopping_ = true;
    send(signal);
    kill_at_ = clock_.now() + grace;
  }

  void kill_when_due() {
    if (!kill_at_ || clock_.now() < *kill_at_) return;
    kill_at_.reset();
    killed_ = true;
    send(SIGKILL);
  }

  void send(int signal) const {
    for (const Running& rank : ranks_) {
      if (rank.alive) ::kill(-rank.result.pid, signal);
    }
  }

  void reap() {
    for (Running& rank : ranks_) {
      if (!rank.alive) continue;
      // Look before taking: while the leader is a zombie, its group's number belongs to nobody else, so that
      // what is left of the group can be ended safely.
      siginfo_t info{};
      const pid_t pid = rank.result.pid;
      if (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
          info.si_pid != pid)
        continue;
      ::kill(-pid, SIGKILL);
      int status = 0;
      if (::waitpid(pid, &status, 0) == pid) ended(rank, status);
    }
  }

  bool is_stop_by_us(int signal) const {
    return signal == SIGTERM || (killed_ && signal == SIGKILL) || (signal != 0 && signal == interrupt_);
  }

  void ended(Running& rank, int status) {
    RankExit& result = rank.result;
    rank.alive = false;
    result.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    result.after_s = Seconds(clock_.now() - start_).count();
    result.order = num_ended_++;
    // Somebody asked this rank to stop, and it told the others: they are saving, too.
    if (result.exit_code() == static_cast<int>(ExitCode::Requeue) && !stopping_) let_finish();
    const bool by_us = stopping_ && (is_stop_by_us(result.signal) || result.exit_code() == 128 + SIGTERM);
    result.consequence = by_us ||
                         (result.failed() && result.exit_code() == static_cast<int>(ExitCode::Peer)) ||
                         (stopping_ && result.exit_code() == static_cast<int>(ExitCode::Requeue));
    for (Stream* stream : {&rank.out, &rank.err}) {
      stream->drain();
      stream->finish();
    }
    result.last_lines = rank.err.last_lines();
    if (!result.failed()) return;
    const bool breaks_off = finishing_ && result.signal == 0 &&
                            result.exit_code() != static_cast<int>(ExitCode::Requeue) && interrupt_ == 0;
    if (stopping_ && !breaks_off) return;
    finishing_ = false;
    for (Running& other : ranks_) {
      if (other.alive) other.result.was_suspended = is_suspended(other.result.pid);
    }
    stop(SIGTERM, options_.grace);
  }

  /// By SIGSTOP or a debugger.
  static bool is_suspended(pid_t pid) {
    std::string stat;
    std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/stat"), stat);
    const std::size_t end = stat.rfind(')');  // of the program's name, which may hold anything
    return end != std::string::npos && end + 2 < stat.size() &&
           (stat[end + 2] == 'T' || stat[end + 2] == 't');
  }

  /// The earliest failure, but a rank that only lost its peer gives way to the one that failed by itself.
  int root_cause() const {
    int root = -1;
    for (int i = 0; i < static_cast<int>(ranks_.size()); ++i) {
      const RankExit& exit = ranks_[i].result;
      if (!exit.failed()) continue;
      if (root < 0) {
        root = i;
        continue;
      }
      const RankExit& best = ranks_[root].result;
      if (std::pair(exit.consequence, exit.order) < std::pair(best.consequence, best.order)) root = i;
    }
    return root;
  }

  LaunchOutcome outcome() const {
    LaunchOutcome outcome{.interrupt = interrupt_, .seconds = Seconds(clock_.now() - start_).count()};
    for (const Running& rank : ranks_) outcome.exits.push_back(rank.result);
    outcome.first_failure = root_cause();
    outcome.stopped_early = std::ranges::any_of(outcome.exits, [](const RankExit& e) {
      return e.exit_code() == static_cast<int>(ExitCode::Requeue);
    });
    // After ^C every rank "fails"; only a failure of its own counts. So too if a rank was asked to stop.
    const bool all_saved = std::ranges::all_of(outcome.exits, [](const RankExit& e) {
      return !e.failed() || e.exit_code() == static_cast<int>(ExitCode::Requeue);
    });
    if ((interrupt_ != 0 || all_saved) && outcome.first_failure >= 0 &&
        outcome.exits[outcome.first_failure].consequence) {
      outcome.first_failure = -1;
    }
    return outcome;
  }

  const LaunchOptions& options_;
  Clock& clock_;
  TimePoint start_;
  SignalGuard signals_;
  Console out_;
  Console err_;
  Refusals refusals_;
  std::vector<Running> ranks_;  // after what their streams point at
  std::optional<TimePoint> kill_at_;
  bool stopping_ = false;
  bool killed_ = false;
  bool finishing_ = false;  ///< the ranks are let come to their end
  TimePoint finish_by_{};
  std::string seen_;  ///< of the ranks' progress
  int interrupt_ = 0;
  int num_ended_ = 0;
};

}  // namespace

int LaunchOutcome::exit_code() const {
  if (first_failure >= 0) return exits[first_failure].exit_code();
  if (interrupt == 0 && !stopped_early) return 0;
  const auto all = [&](ExitCode code) {
    return std::all_of(exits.begin(), exits.end(), [&](const RankExit& e) {
      return e.exit_code() == static_cast<int>(code) || !e.failed();
    });
  };
  if (all(ExitCode::Done)) return static_cast<int>(ExitCode::Done);
  return all(ExitCode::Requeue) ? static_cast<int>(ExitCode::Requeue) : 128 + interrupt;
}

LaunchOutcome run_ranks(const std::vector<RankProcess>& processes, const LaunchOptions& options,
                        Clock& clock) {
  Launch launch(options, clock);
  for (const RankProcess& process : processes) launch.start(process);
  return launch.run();
}

}  // namespace millrace
