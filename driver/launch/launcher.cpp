#include "driver/launch/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <optional>

#include "driver/launch/console.h"
#include "driver/launch/host_results.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/here_and_now.h"
#include "runtime/base/log.h"
#include "runtime/base/numbers.h"
#include "runtime/base/open_files.h"
#include "runtime/base/run_files.h"
#include "runtime/base/units.h"

namespace millrace {
namespace {

constexpr std::size_t kKeptLines = 4;          // of stderr, for the failure summary
constexpr std::size_t kLongestLine = 1 << 16;  // a longer one is passed on in pieces
// Waking up early costs nothing; it guards against a SIGCHLD that another part of the process swallowed.
constexpr int kLongestPollMs = 1000;
constexpr std::chrono::milliseconds kProgressEvery{500};
// How long the end waits for who reads results, and the story, if he takes nothing.
constexpr std::chrono::milliseconds kResultsPatience{5000}, kStoryPatience{1000};
// A rank that a stop signal ends has not begun to train, so the others wait for it in vain.
constexpr std::chrono::milliseconds kGraceOfAStart{3'000};
// After a stop signal ranks that get on have this many times the grace at most.
constexpr int kMostGraces = 4;
constexpr std::chrono::milliseconds kKilledHostPatience{5000};
// How long hosts whose ranks have ended may send nothing of what they still have.
constexpr std::chrono::milliseconds kGatheringPatience{30'000};

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // a closed console or a full disk must not stop the job
    text.remove_prefix(n);
  }
}

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
    pipe_.close();
    if (!pending_.empty()) pass_on(std::exchange(pending_, {}));
  }

  /// Gives the pipe up. The process rests, and all that it wrote is to be drained.
  Descriptor release() {
    Descriptor pipe = std::move(pipe_);
    finish();
    return pipe;
  }

  std::vector<std::string> last_lines() const { return {lines_.begin(), lines_.end()}; }

  /// Bytes of the stream, out of the pipe or from the agent of another host.
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

 private:
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

Descriptor open_log(const std::string& path, bool append) {
  const int fd = ::open(
      path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_APPEND | (append ? 0 : O_TRUNC), 0644);
  if (fd < 0) throw ConfigError(path + " cannot be created: " + std::strerror(errno));
  return Descriptor(fd);
}

// ---- the loop
// -----------------------------------------------------------------------------------------------

struct Running {
  RankExit result;
  int host = -1;  ///< position among the hosts; -1: a process of this host
  Stream out;
  Stream err;
  bool alive = true;
  RankProcess process{};  ///< of ranks that may be kept, as the next one
  Descriptor orders{};
  std::vector<std::string> argv{};  ///< that the process was started with
  bool has_joined = false;
};

class Launch final : private HostEvents {
 public:
  Launch(LaunchOptions options, Clock& clock)
      : options_(std::move(options)),
        clock_(clock),
        start_(clock.now()),
        own_signals_(options_.signals ? nullptr : std::make_unique<SignalGuard>()),
        signals_(options_.signals ? *options_.signals : *own_signals_),
        out_(options_.out, Console::kResults),
        err_(options_.err, Console::kStory) {}
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;
  /// Processes are left only if something was thrown.
  ~Launch() {
    send(SIGKILL);
    for (Running& rank : ranks_) {
      if (rank.alive && rank.host < 0) ::waitpid(rank.result.pid, nullptr, 0);
    }
  }

  /// Connects to the hosts and lets their ranks start. Returns false if a signal came first. Throws
  /// UnreadyHosts.
  bool start_hosts() {
    if (const std::vector<int> came = signals_.read(); !came.empty()) interrupt_ = came.front();
    if (interrupt_ != 0) return false;
    if (options_.hosts.empty()) return true;
    const Result<int> ready = prepare_hosts(options_.hosts, options_.host_deadline, signals_, clock_);
    if (options_.hosts_ready) options_.hosts_ready(ready && *ready == 0);
    if (!ready) {
      std::vector<std::size_t> unready;
      for (std::size_t h = 0; h < options_.hosts.size(); ++h)
        if (!options_.hosts[h]->is_idle()) unready.push_back(h);
      keep_hosts();
      throw UnreadyHosts(to_string(ready.problems()), std::move(unready));
    }
    interrupt_ = *ready;
    if (interrupt_ != 0) return false;
    const HostConnection& first = *options_.hosts.front();
    std::string meeting = first.job().meeting;
    const bool all_know_it =
        std::ranges::all_of(options_.hosts, [](const auto& host) { return host->resolves_meeting(); });
    if (meeting.empty() || !all_know_it) meeting = first.address();
    if (meeting.empty()) meeting = "127.0.0.1";  // a host without a network has all ranks
    std::vector<std::pair<std::string, std::string>> added{{"MASTER_ADDR", meeting},
                                                           {"MASTER_PORT", std::to_string(first.port())}};
    added.push_back(spent());
    const bool apart =
        !std::ranges::all_of(options_.hosts, [](const auto& host) { return host->shares_output(); });
    if (apart) added.emplace_back("MILLRACE_FOLDERS", "apart");
    if (!apart) options_.collectors.clear();
    const std::string resume = apart && options_.place_resumed ? options_.place_resumed() : "";
    for (const auto& host : options_.hosts) host->go(added, resume);
    return true;
  }

  void start(RankProcess process) {
    process.environment.push_back(spent());
    Descriptor out_log, err_log;
    if (!process.log.empty()) {
      out_log = open_log(process.log + ".out", options_.append_logs);
      err_log = open_log(process.log + ".err", options_.append_logs);
    }
    const std::string name = "rank " + std::to_string(process.rank);
    ChildProcess child;
    if (process.host < 0) child = process_for(name, process);
    ranks_.push_back({.result = {.rank = process.rank, .stage = process.stage, .pid = child.pid},
                      .host = process.host,
                      .out = Stream(std::move(child.out), std::move(out_log), out_, "", process.rank),
                      .err = Stream(std::move(child.err), std::move(err_log), err_, "[" + name + "] ",
                                    process.rank, &refusals_),
                      .process = process,
                      .orders = std::move(child.orders),
                      .argv = std::move(child.argv)});
  }

  LaunchOutcome run() {
    while (any_alive() || hosts_finish()) {
      wait_for_events();
      allow_for_progress();
      kill_when_due();
      give_up_silent_hosts();
      out_.flush();
      err_.flush();
      for (Running& rank : ranks_) {
        rank.out.drain();
        rank.err.drain();
      }
      read_hosts();
      hear_ranks();
      gather_checkpoints();
      for (const int signal : signals_.read()) interrupt(signal);
      reap();
      kill_silent_ranks();
    }
    err_.finish(kStoryPatience, signals_.descriptor());
    if (!out_.finish(kResultsPatience, signals_.descriptor()))
      err_.write("millrace: nobody reads the results; what is missing is in the logs\n");
    if (hosts_rest_) keep_hosts();
    return outcome();
  }

 private:
  static std::pair<std::string, std::string> spent() {
    return {kSpent, printed("%.2f", process_age().count())};
  }

  /// A process that was kept, or a new one.
  ChildProcess process_for(const std::string& name, const RankProcess& rank) {
    if (options_.kept) {
      if (std::optional<ChildProcess> kept = options_.kept->ranks.take(rank)) return std::move(*kept);
    }
    return start_child(name, rank.argv, rank.environment, signals_.old_mask(),
                       options_.kept ? ChildInput::Orders : ChildInput::None);
  }

  bool any_alive() const {
    return std::any_of(ranks_.begin(), ranks_.end(), [](const Running& r) { return r.alive; });
  }

  void wait_for_events() {
    std::vector<pollfd> polled{{.fd = signals_.descriptor(), .events = POLLIN, .revents = 0}};
    for (const Running& rank : ranks_) {
      for (const Stream* stream : {&rank.out, &rank.err}) {
        if (stream->is_open()) polled.push_back({.fd = stream->descriptor(), .events = POLLIN, .revents = 0});
      }
      if (rank.orders.is_open()) polled.push_back({.fd = rank.orders.get(), .events = POLLIN, .revents = 0});
    }
    for (const auto& host : options_.hosts) host->descriptors(polled);
    for (const Console* console : {&out_, &err_}) {
      if (console->is_waiting())
        polled.push_back({.fd = console->descriptor(), .events = POLLOUT, .revents = 0});
    }
    int timeout = kLongestPollMs;
    if (options_.heartbeats)
      timeout = std::min(timeout, static_cast<int>(options_.heartbeats->every().count()));
    if (kill_at_) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*kill_at_ - clock_.now()).count();
      timeout = static_cast<int>(std::clamp<std::int64_t>(left, 0, kLongestPollMs));
    }
    ::poll(polled.data(), polled.size(), timeout);
  }

  /// Hears which ranks have met the others, and which wait to be started again.
  void hear_ranks() {
    for (Running& rank : ranks_) {
      while (const std::optional<char> said = next_word(rank.orders)) {
        rank.has_joined = rank.has_joined || *said == kHasJoined;
        if (*said == kWaits) ended(rank, {.status = static_cast<int>(ExitCode::Peer), .is_kept = true});
      }
    }
  }

  void read_hosts() {
    for (std::size_t h = 0; h < options_.hosts.size(); ++h) {
      HostConnection& host = *options_.hosts[h];
      if (!host.is_open() || host.read(*this)) continue;
      if (!host.loss().empty()) each_collector([&](auto& one) { one.lost(static_cast<int>(h)); });
      for (Running& rank : ranks_) {
        if (!rank.alive || rank.host != static_cast<int>(h)) continue;
        rank.result.lost = "host " + host.name() + " is lost: " + host.loss();
        ended(rank, {.status = static_cast<int>(ExitCode::Peer), .signal = 0});
      }
    }
  }

  /// The ranks have ended: the hosts have results and checkpoints to send. Returns whether to wait for them.
  bool hosts_finish() {
    std::int64_t bytes = 0;
    bool all_ended = true, any_open = false;
    for (const auto& host : options_.hosts) {
      bytes += host->bytes_received();
      any_open = any_open || host->is_open();
      all_ended = all_ended && (host->has_ended() || !host->is_open());
    }
    if (!any_open || hurries_ || ranks_.empty()) return false;
    if (!std::exchange(is_finishing_, true) || bytes != bytes_seen_)
      give_up_hosts_at_ = clock_.now() + kGatheringPatience;
    bytes_seen_ = bytes;
    const bool is_gathering =
        std::ranges::any_of(options_.collectors, [](const auto& one) { return one.second->is_busy(); });
    if (all_ended && !is_gathering) {
      hosts_rest_ =
          options_.kept && std::ranges::any_of(ranks_, [](const Running& r) { return r.result.is_kept; });
      if (hosts_rest_) return false;
      for (const auto& host : options_.hosts) host->finish();
    }
    if (clock_.now() < give_up_hosts_at_) return true;
    each_collector([](auto& one) { one.give_up("the hosts send no more"); });
    return false;
  }

  /// Gives up the connections that the next run can use.
  void keep_hosts() {
    if (!options_.kept) return;
    for (auto& host : options_.hosts)
      if (host->is_idle()) options_.kept->hosts.push_back(std::move(host));
    std::erase(options_.hosts, nullptr);
  }

  void gather_checkpoints() {
    for (const auto& [prefix, collector] : options_.collectors)
      if (const std::optional<std::string> step = collector->next())
        for (const auto& host : options_.hosts) host->collect(prefix + *step);
  }
  void each_collector(const std::function<void(CheckpointCollector&)>& act) {
    for (const auto& [prefix, collector] : options_.collectors) act(*collector);
  }

  Running* running(int rank) {
    const auto found =
        std::ranges::find_if(ranks_, [&](const Running& r) { return r.result.rank == rank && r.host >= 0; });
    return found == ranks_.end() ? nullptr : &*found;
  }

  // ---- HostEvents
  void wrote(int rank, bool to_stderr, std::string_view bytes) override {
    if (Running* r = running(rank)) (to_stderr ? r->err : r->out).take(bytes);
  }
  void ended(int rank, pid_t pid, const ChildEnd& end, bool was_suspended) override {
    Running* r = running(rank);
    if (!r || !r->alive) return;
    r->result.pid = pid;
    r->result.was_suspended = was_suspended;
    ended(*r, end);
  }
  void grown(int host, const std::string& path, std::int64_t offset, std::string_view bytes) override {
    if (options_.results) options_.results->grown(host, path, offset, bytes);
  }
  void sent(int host, const std::string& path, std::string_view content) override {
    if (options_.results) options_.results->whole(host, path, content);
    // A rank has a status as soon as the run has begun.
    if (!path.starts_with(run_files::kStatus.prefix)) return;
    each_collector([](CheckpointCollector& one) {
      if (const Status taken = one.take_folder(); !taken) log_warning(to_string(taken.problems()));
    });
  }
  void saved(int host, const std::string& prefix, std::string_view manifest) override {
    const auto collector = options_.collectors.find(prefix);
    if (collector != options_.collectors.end()) collector->second->saved(host, manifest);
  }
  void collected(int host, const std::string& path, std::string_view piece) override {
    const std::string prefix = path.starts_with(kBestPrefix) ? kBestPrefix : "";
    const auto collector = options_.collectors.find(prefix);
    if (collector != options_.collectors.end())
      collector->second->take(host, path.substr(prefix.size()), piece);
  }

  void interrupt(int signal) {
    // A terminal that closes may say so twice, and a scheduler may go on warning.
    if ((signal == SIGHUP || signal == SIGUSR1) && interrupt_ != 0) return;
    if (interrupt_ == 0 && stopping_) {  // the ranks end already, because one failed or was asked to stop
      interrupt_ = signal;
      return;
    }
    if (interrupt_ != 0) {  // the second one: at once
      finishing_ = false;
      kill_at_ = clock_.now();
      hurries_ = true;
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
    if (!finishing_ || !kill_at_ || !options_.progress || clock_.now() < look_at_) return;
    look_at_ = clock_.now() + kProgressEvery;
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
    lost_at_ = clock_.now() + kKilledHostPatience;
  }

  /// A host that does not say that its killed ranks have ended is gone: nothing else would tell.
  void give_up_silent_hosts() {
    if (!lost_at_ || clock_.now() < *lost_at_) return;
    lost_at_.reset();
    for (Running& rank : ranks_) {
      if (!rank.alive || rank.host < 0) continue;
      HostConnection& host = *options_.hosts[rank.host];
      host.give_up();
      each_collector([&](auto& one) { one.lost(rank.host); });
      rank.result.lost = "host " + host.name() + " is lost: it answers no more";
      ended(rank, {.status = static_cast<int>(ExitCode::Peer), .signal = 0});
    }
  }

  void send(int signal) const {
    for (const Running& rank : ranks_) {
      if (rank.alive && rank.host < 0) ::kill(-rank.result.pid, signal);
    }
    for (const auto& host : options_.hosts) host->signal(signal);
  }

  void reap() {
    for (Running& rank : ranks_) {
      if (!rank.alive || rank.host >= 0) continue;
      if (const std::optional<ChildEnd> end = end_of(rank.result.pid)) ended(rank, *end);
    }
  }

  void kill_silent_ranks() {
    if (!options_.heartbeats) return;
    for (Running& rank : ranks_) {
      if (!rank.alive || rank.host >= 0 || !rank.result.lost.empty()) continue;
      const auto silence = options_.heartbeats->silence(rank.result.rank, rank.result.pid, clock_.now());
      if (!silence) continue;
      rank.result.lost = *silence;
      ::kill(-rank.result.pid, SIGKILL);
    }
  }

  bool is_stop_by_us(int signal) const {
    return signal == SIGTERM || (killed_ && signal == SIGKILL) || (signal != 0 && signal == interrupt_);
  }

  void ended(Running& rank, const ChildEnd& end) {
    RankExit& result = rank.result;
    rank.alive = false;
    result.is_kept = end.is_kept && options_.kept;
    if (!end.silence.empty()) result.lost = end.silence;
    result.signal = result.lost.empty() ? end.signal : 0;
    result.status = result.lost.empty() ? end.status : static_cast<int>(ExitCode::Peer);
    result.after_s = Seconds(clock_.now() - start_).count();
    result.order = num_ended_++;
    // Somebody asked this rank to stop, and it told the others: they are saving, too.
    if (result.exit_code() == static_cast<int>(ExitCode::Requeue) && !stopping_) let_finish();
    if (finishing_ && interrupt_ != 0 && result.signal == interrupt_ && kill_at_) {
      finishing_ = false;
      kill_at_ = std::min(*kill_at_, clock_.now() + kGraceOfAStart);
    }
    const bool by_us = stopping_ && (is_stop_by_us(result.signal) || result.exit_code() == 128 + SIGTERM ||
                                     (result.was_suspended && result.signal == SIGKILL));
    result.consequence =
        by_us ||
        (result.failed() && result.lost.empty() && result.exit_code() == static_cast<int>(ExitCode::Peer)) ||
        (stopping_ && result.exit_code() == static_cast<int>(ExitCode::Requeue));
    for (Stream* stream : {&rank.out, &rank.err}) {
      stream->drain();
      if (!result.is_kept || rank.host >= 0) stream->finish();
    }
    if (result.is_kept && rank.host < 0)
      options_.kept->ranks.keep(rank.process, {.pid = result.pid,
                                               .in = Descriptor(),
                                               .out = rank.out.release(),
                                               .err = rank.err.release(),
                                               .orders = std::move(rank.orders),
                                               .argv = std::move(rank.argv)});
    rank.orders.close();
    result.last_lines = rank.err.last_lines();
    if (!result.failed()) return;
    const bool breaks_off = finishing_ && result.signal == 0 &&
                            result.exit_code() != static_cast<int>(ExitCode::Requeue) && interrupt_ == 0;
    if (stopping_ && !breaks_off) return;
    finishing_ = false;
    for (Running& other : ranks_) {
      if (other.alive && other.host < 0) other.result.was_suspended = is_suspended(other.result.pid);
    }
    end_others();
  }

  /// Ranks that may be kept end their runs by themselves, because a peer is lost. A suspended rank would use
  /// up the grace without saving anything.
  void end_others() {
    stopping_ = true;
    failed_ = interrupt_ == 0;
    for (const Running& rank : ranks_)
      if (rank.alive && rank.host < 0 && (rank.result.was_suspended || !rank.has_joined))
        ::kill(-rank.result.pid, rank.result.was_suspended ? SIGKILL : SIGTERM);
    for (const auto& host : options_.hosts) host->end_ranks();
    kill_at_ = clock_.now() + options_.grace;
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
    LaunchOutcome outcome{
        .interrupt = interrupt_, .hurried = hurries_, .seconds = Seconds(clock_.now() - start_).count()};
    for (const Running& rank : ranks_) outcome.exits.push_back(rank.result);
    outcome.first_failure = root_cause();
    outcome.stopped_early = std::ranges::any_of(outcome.exits, [](const RankExit& e) {
      return e.exit_code() == static_cast<int>(ExitCode::Requeue);
    });
    // After ^C every rank "fails"; only a failure of its own counts. So too if a rank was asked to stop. A
    // failure from before the signal stays one.
    const bool all_saved = std::ranges::all_of(outcome.exits, [](const RankExit& e) {
      return !e.failed() || e.exit_code() == static_cast<int>(ExitCode::Requeue);
    });
    if (((interrupt_ != 0 && !failed_) || all_saved) && outcome.first_failure >= 0 &&
        outcome.exits[outcome.first_failure].consequence) {
      outcome.first_failure = -1;
    }
    return outcome;
  }

  LaunchOptions options_;
  Clock& clock_;
  TimePoint start_;
  std::unique_ptr<SignalGuard> own_signals_;
  const SignalGuard& signals_;
  Console out_;
  Console err_;
  Refusals refusals_;
  std::vector<Running> ranks_;  // after what their streams point at
  std::optional<TimePoint> kill_at_;
  std::optional<TimePoint> lost_at_;  ///< when hosts with living ranks are given up
  bool stopping_ = false;
  bool killed_ = false;
  bool failed_ = false;     ///< a rank failed before a signal came
  bool finishing_ = false;  ///< the ranks are let come to their end
  TimePoint finish_by_{};
  std::string seen_;     ///< of the ranks' progress
  TimePoint look_at_{};  ///< when to look at it again: with thousands of ranks that takes a while
  int interrupt_ = 0;
  int num_ended_ = 0;
  bool hosts_rest_ = false;    ///< their agents can be given the next run
  bool hurries_ = false;       ///< hosts that have something left are not waited for
  bool is_finishing_ = false;  ///< only the hosts' results are still to come
  std::int64_t bytes_seen_ = 0;
  TimePoint give_up_hosts_at_{};
};

}  // namespace

std::unique_ptr<HostConnection> Survivors::take(const std::vector<std::string>& command) {
  const auto found =
      std::ranges::find_if(hosts, [&](const auto& host) { return host->command() == command; });
  if (found == hosts.end()) return nullptr;
  std::unique_ptr<HostConnection> host = std::move(*found);
  hosts.erase(found);
  return host;
}

void Survivors::end() {
  ranks.end();
  hosts.clear();
}

int LaunchOutcome::exit_code() const {
  if (first_failure >= 0) return exits[first_failure].exit_code();
  if (interrupt == 0 && !stopped_early) return 0;
  if (exits.empty()) return 128 + interrupt;  // before any rank was started
  const auto all = [&](ExitCode code) {
    return std::all_of(exits.begin(), exits.end(), [&](const RankExit& e) {
      return e.exit_code() == static_cast<int>(code) || !e.failed();
    });
  };
  if (all(ExitCode::Done)) return static_cast<int>(ExitCode::Done);
  return all(ExitCode::Requeue) ? static_cast<int>(ExitCode::Requeue) : 128 + interrupt;
}

/// Each rank has two logs here, and a rank of this host two pipes and a socket: more than a shell's limit
/// allows from some hundred ranks on. Throws before anything starts.
static void allow_open_files(std::size_t ranks, bool on_hosts) {
  constexpr std::size_t kOthers = 256;
  require_open_files(ranks * (on_hosts ? 2 : 5) + kOthers,
                     "the launcher of " + std::to_string(ranks) + " ranks");
}

LaunchOutcome run_ranks(const std::vector<RankProcess>& processes, LaunchOptions options, Clock& clock) {
  const std::function<void()> started = options.started;
  allow_open_files(processes.size(), !options.hosts.empty());
  Launch launch(std::move(options), clock);
  if (launch.start_hosts()) {
    for (const RankProcess& process : processes) launch.start(process);
    if (started) started();
  }
  return launch.run();
}

}  // namespace millrace
