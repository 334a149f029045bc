#include "experiments/io/capture/capture.h"

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <mutex>
#include <set>
#include <thread>

#include "experiments/io/capture/bpftrace_source.h"
#include "experiments/io/capture/ptrace_source.h"
#include "experiments/io/capture/raw_writer.h"
#include "experiments/io/capture/samplers.h"
#include "runtime/base/files.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
constexpr const char* kReport = "capture.json";
constexpr double kClockWasSet = 0.05;  // seconds; an adjustment of its rate moves it less

std::int64_t utc_offset_now() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return local.tm_gmtoff;
}

/// The signals that stop a capture, blocked in this thread and in those that it starts.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigemptyset(&set_);
    for (int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set_, signal);
    pthread_sigmask(SIG_BLOCK, &set_, &old_);
  }
  ~BlockedSignals() {
    // One that came too late to be passed on has done its work: the command has ended.
    const timespec at_once{};
    while (sigtimedwait(&set_, nullptr, &at_once) > 0) {
    }
    pthread_sigmask(SIG_SETMASK, &old_, nullptr);
  }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;
  /// A signal that came within `ns`; 0: none.
  int wait(std::int64_t ns, siginfo_t& info) const {
    const timespec time{static_cast<std::time_t>(ns / kNsPerSecond), ns % kNsPerSecond};
    return std::max(sigtimedwait(&set_, &info, &time), 0);
  }

 private:
  sigset_t set_{}, old_{};
};

/// The processes of the command, as far as they have called something.
class ProcessSet {
 public:
  void start(std::uint32_t process) {
    const std::lock_guard lock(mutex_);
    command_ = process;
    alive_.insert(process);
    seen_.insert(process);
  }
  void saw(std::uint32_t process) {
    if (process == last_) return;
    last_ = process;
    const std::lock_guard lock(mutex_);
    alive_.insert(process);
    seen_.insert(process);
  }
  void ended(std::uint32_t process) {
    if (process == last_) last_ = 0;
    const std::lock_guard lock(mutex_);
    alive_.erase(process);
  }
  std::set<std::uint32_t> alive() const {
    const std::lock_guard lock(mutex_);
    return alive_;
  }
  std::int64_t seen() const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::int64_t>(seen_.size());
  }
  void signal_command(int signal) const {
    const std::lock_guard lock(mutex_);
    if (command_ > 0) kill(static_cast<pid_t>(command_), signal);
  }
  void kill_all() const {
    for (std::uint32_t process : alive()) kill(static_cast<pid_t>(process), SIGKILL);
  }

 private:
  mutable std::mutex mutex_;  // guards what follows
  std::set<std::uint32_t> alive_, seen_;
  std::uint32_t command_ = 0;
  std::uint32_t last_ = 0;  // of the tracing thread alone
};

/// Samples once a second, flushes the rows and passes signals on, in a thread of its own.
class Watch {
 public:
  Watch(const fs::path& folder, RawWriter& writer, const ProcessSet& processes, const BlockedSignals& signals)
      : folder_(folder), writer_(writer), processes_(processes), signals_(signals), thread_([this] {
          run();
        }) {}
  ~Watch() { stop(); }
  /// Waits until the first sample is taken; the problem, if the files cannot be made.
  std::string ready() {
    while (state_ == kStarting) std::this_thread::yield();
    return problem_;
  }
  void stop() {
    done_ = true;
    if (thread_.joinable()) thread_.join();
  }
  std::int64_t samples = 0, lost = 0;
  std::vector<std::string> gaps;
  bool gpu = false;

 private:
  enum State { kStarting, kRunning };

  void run() {
    try {
      // nvidia-smi is a child of this thread: the tracing thread must not wait for it.
      Samplers samplers(folder_);
      samplers.align();
      samplers.sample(processes_.alive());
      gpu = samplers.has_gpu();
      state_ = kRunning;
      while (!done_) {
        if (pass_on_signals()) continue;
        samplers.sample(processes_.alive());
        writer_.flush();
      }
      samplers.sample({});
      samplers.finish();
      samples = samplers.samples();
      lost = samplers.lost();
      gaps = samplers.gaps();
    } catch (const std::exception& error) {
      problem_ = error.what();
      state_ = kRunning;
    }
  }

  /// Waits for the next change of second, at most. True: a signal came, or all is done.
  bool pass_on_signals() {
    constexpr std::int64_t kStep = kNsPerSecond / 20;
    siginfo_t info{};
    const std::int64_t left = kNsPerSecond - steady_utc_ns() % kNsPerSecond;
    const int signal = signals_.wait(std::min(left, kStep), info);
    if (signal == 0) return done_ || left > kStep;
    if (++signals_seen_ > 1) {
      processes_.kill_all();
    } else if (signal != SIGINT || info.si_code != SI_KERNEL) {
      processes_.signal_command(signal);  // Ctrl-C of a terminal reaches the command by itself
    }
    return true;
  }

  const fs::path folder_;
  RawWriter& writer_;
  const ProcessSet& processes_;
  const BlockedSignals& signals_;
  std::string problem_;
  std::atomic<State> state_{kStarting};
  std::atomic<bool> done_{false};
  int signals_seen_ = 0;
  std::thread thread_;
};

/// The phases of the command in the kit's form: it initialises in no time, and trains until it ends.
class PhaseLog {
 public:
  explicit PhaseLog(const fs::path& folder) : file_(folder / "capture.log") {}
  void start() {
    for (const char* key : {"init_start", "init_stop", "training_start"}) event(key);
  }
  void stop() { event("training_stop"); }

 private:
  void event(const char* key) {
    (void)file_.write_line(
        printed(":::MLLOG {\"namespace\": \"\", \"time_ms\": %lld, \"event_type\": \"%s\", \"key\": "
                "\"%s\", \"value\": null, \"metadata\": {\"file\": \"capture\", \"lineno\": 0}}",
                static_cast<long long>(steady_utc_ns() / 1'000'000),
                std::strstr(key, "start") ? "INTERVAL_START" : "INTERVAL_END", key));
  }
  LineFile file_;
};

int exit_code_of(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

std::optional<Problem> make_folder(const fs::path& folder) {
  if (const Status made = make_writable_folder(folder); !made) return made.problems().front();
  std::error_code error;
  for (const char* file : {kReport, "trace_read.out"}) {
    if (fs::exists(folder / file, error))
      return Problem{folder.string(), std::string("holds a trace already (") + file + ")",
                     "give another --out"};
  }
  return std::nullopt;
}

/// Remembers what a folder holds, so that everything that comes later can be taken away again.
class FolderBefore {
 public:
  explicit FolderBefore(fs::path folder) : folder_(std::move(folder)) {
    std::error_code ignored;
    was_there_ = fs::exists(folder_, ignored);
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_, ignored))
      held_.insert(entry.path());
  }
  void restore() const {
    std::error_code ignored;
    std::vector<fs::path> added;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_, ignored))
      if (!held_.contains(entry.path())) added.push_back(entry.path());
    for (const fs::path& file : added) fs::remove(file, ignored);
    if (!was_there_) fs::remove(folder_, ignored);
  }

 private:
  fs::path folder_;
  bool was_there_ = false;
  std::set<fs::path> held_;
};

class Capture {
 public:
  explicit Capture(const CaptureOptions& options) : options_(options), folder_(options.folder) {}

  Result<CaptureReport> run() {
    const FolderBefore before(folder_);
    try {
      Result<CaptureReport> report = run_command();
      if (!report) before.restore();  // the same --out is free again
      return report;
    } catch (...) {
      before.restore();
      throw;
    }
  }

 private:
  Result<CaptureReport> run_command() {
    if (auto problem = make_folder(folder_)) return *problem;
    if (auto problem = choose_method()) return *problem;
    RawWriter writer(folder_);
    PhaseLog phases(folder_);
    const BlockedSignals signals;
    Watch watch(folder_, writer, processes_, signals);
    if (const std::string problem = watch.ready(); !problem.empty())
      return Problem{folder_.string(), problem, ""};
    const TraceResult result = trace(writer, phases);
    phases.stop();
    watch.stop();
    writer.flush();
    if (!result.refused.empty())
      return Problem{"trace capture", "cannot trace here: " + result.refused,
                     "a container may forbid ptrace (docker: --cap-add SYS_PTRACE)"};
    if (result.exec_error != 0)
      return Problem{options_.command.front(),
                     std::string("cannot be started: ") + std::strerror(result.exec_error),
                     "is it in the PATH, and executable?"};
    report_.seconds = std::chrono::duration<double>(ended_ - started_).count();
    report_.exit_code = exit_code_of(result.status);
    report_.rows = writer.rows();
    report_.left_out = writer.left_out();
    report_.lost += writer.lost() + watch.lost;
    report_.bytes_read = writer.bytes_read();
    report_.bytes_written = writer.bytes_written();
    report_.processes = processes_.seen();
    report_.samples = watch.samples;
    report_.gpu = watch.gpu;
    report_.notes = watch.gaps;
    report_.utc_offset_s = utc_offset_now();
    add_notes();
    const Status written =
        write_file_atomically(folder_ / kReport, report_.json(options_.command).dump(2) + "\n");
    if (!written) report_.notes.push_back(to_string(written.problems().front()));
    return std::move(report_);
  }

  std::optional<Problem> choose_method() {
    CaptureMethod method = options_.method;
    if (method != CaptureMethod::Ptrace) {
      const std::string why = why_no_bpftrace();
      if (!why.empty() && method == CaptureMethod::Bpftrace)
        return Problem{"--method bpftrace", why, "--method ptrace needs none of it"};
      report_.why_not_bpftrace = why;
      method = why.empty() ? CaptureMethod::Bpftrace : CaptureMethod::Ptrace;
    }
    report_.method = to_string(method);
    if (method == CaptureMethod::Ptrace) report_.latency_floor_ns = measure_ptrace_floor();
    return std::nullopt;
  }

  TraceResult trace(RawWriter& writer, PhaseLog& phases) {
    const CaptureSink sink{
        .event =
            [&](const FileEvent& event) {
              processes_.saw(event.process);
              writer.add(event);
            },
        .forget =
            [&](std::uint32_t process) {
              writer.forget(process);
              processes_.ended(process);
            },
        .forked = [&](std::uint32_t parent, std::uint32_t child) { writer.fork(parent, child); },
        .started =
            [&](std::uint32_t process) {
              processes_.start(process);
              phases.start();
              started_ = ended_ = std::chrono::steady_clock::now();
            },
        .ended = [&](int) { ended_ = std::chrono::steady_clock::now(); },
    };
    const TracedCommand command{.body = {}, .words = options_.command};
    if (report_.method == to_string(CaptureMethod::Ptrace))
      return trace_by_ptrace(command, report_.latency_floor_ns, sink);
    BpftraceResult result =
        trace_by_bpftrace(command, sink, [&](std::string_view row) { writer.add_bio(row); });
    report_.lost += result.lost;
    return std::move(result.trace);
  }

  void add_notes() {
    if (report_.method == to_string(CaptureMethod::Ptrace)) {
      report_.notes.push_back("ptrace does not see the block layer: trace_bio.out has no row");
      report_.notes.push_back("reads through a mapping are seen as page faults alone (processes.csv)");
    }
    if (!report_.gpu) report_.notes.push_back("no GPU was sampled: nvidia-smi is not here");
    if (const double set = static_cast<double>(clock_set_by_ns()) * 1e-9; std::abs(set) > kClockWasSet)
      report_.notes.push_back(
          printed("the clock of the day was set by %+.3f s meanwhile: all times go on as "
                  "before",
                  set));
    if (report_.lost > 0) report_.notes.push_back(std::to_string(report_.lost) + " rows were lost");
  }

  const CaptureOptions& options_;
  const fs::path folder_;
  CaptureReport report_;
  ProcessSet processes_;
  std::chrono::steady_clock::time_point started_, ended_;
};

Json counts(const std::map<std::string, std::int64_t>& map) {
  Json json = Json::object();
  for (const auto& [name, count] : map) json[name] = count;
  return json;
}

}  // namespace

Result<CaptureReport> capture(const CaptureOptions& options) {
  return Capture(options).run();
}

Json CaptureReport::json(const std::vector<std::string>& command) const {
  Json words = Json::array();
  for (const std::string& word : command) words.push_back(word);
  Json json = Json::object({{"format", "millrace-capture-1"},
                            {"command", words},
                            {"method", method},
                            {"exit_code", std::int64_t{exit_code}},
                            {"seconds", seconds},
                            {"utc_offset_s", utc_offset_s},
                            {"latency_floor_ns", latency_floor_ns},
                            {"rows", counts(rows)},
                            {"left_out", counts(left_out)},
                            {"lost", lost},
                            {"bytes_read", bytes_read},
                            {"bytes_written", bytes_written},
                            {"processes", processes},
                            {"samples", samples},
                            {"gpu", gpu}});
  if (!why_not_bpftrace.empty()) json["why_not_bpftrace"] = why_not_bpftrace;
  Json list = Json::array();
  for (const std::string& note : notes) list.push_back(note);
  json["notes"] = list;
  return json;
}

}  // namespace millrace
