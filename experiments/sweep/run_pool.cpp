#include "experiments/sweep/run_pool.h"

#include <fcntl.h>
#include <linux/perf_event.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "driver/launch/launch_command.h"
#include "driver/launch/local_ranks.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/counters/nvml.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kSampleEvery{200};
constexpr const char* kEnd = "end.json";  // how the job's process ended, in its folder
constexpr int kStopSignals[] = {SIGINT, SIGTERM, SIGHUP};
static_assert(sizeof(sigset_t) <= 128);

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  for (int signal : kStopSignals) sigaddset(&set, signal);
  return set;
}

double now_s() {
  return Seconds(steady_clock().now().time_since_epoch()).count();
}

// ---- in the job's process
// ------------------------------------------------------------------------------------

/// Instructions of this process and of those that it will start; -1 where that is not allowed.
int count_instructions() {
  perf_event_attr attributes{};
  attributes.type = PERF_TYPE_HARDWARE;
  attributes.size = sizeof attributes;
  attributes.config = PERF_COUNT_HW_INSTRUCTIONS;
  attributes.inherit = 1;
  attributes.exclude_kernel = 1;
  attributes.exclude_hv = 1;
  return static_cast<int>(::syscall(SYS_perf_event_open, &attributes, 0, -1, -1, PERF_FLAG_FD_CLOEXEC));
}

/// Returns the lines from the one on that says what is wrong.
std::string error_of(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) {
    if (text.empty() && line.find("error: ") == std::string::npos) continue;
    text += (text.empty() ? "" : "\n") + line;
  }
  if (text.empty() && !lines.empty()) text = lines.back();
  const std::size_t at = text.find("error: ");
  return at == std::string::npos ? text : text.substr(at + std::strlen("error: "));
}

std::string error_of(const LaunchOutcome& outcome) {
  if (outcome.first_failure < 0) return "";
  const RankExit& exit = outcome.exits[outcome.first_failure];
  const std::string said = error_of(exit.last_lines);
  if (exit.signal != 0 || said.empty()) return end_text(exit) + (said.empty() ? "" : ": " + said);
  return said;
}

/// Runs a command before the job and returns its error. Its log is removed when it succeeds.
std::string run_before(const PooledJob& pooled) {
  const std::string log = pooled.job.output_dir + ".before";
  (void)make_writable_folder(fs::path(log).parent_path());
  SteadyClock clock;
  const LaunchOutcome outcome = run_ranks({{.argv = pooled.before, .log = log}}, {}, clock);
  std::error_code ignored;
  if (outcome.exit_code() == 0) {
    for (const char* stream : {".out", ".err"}) fs::remove(log + stream, ignored);
    return "";
  }
  const std::string error = error_of(outcome);
  return fs::path(pooled.before.front()).filename().string() + " " + pooled.before.at(1) + ": " +
         (error.empty() ? "exit code " + std::to_string(outcome.exit_code()) : error);
}

int run_here(const PooledJob& pooled, Json& end) {
  const JobSpec& job = pooled.job;
  std::error_code ignored;
  if (pooled.leftovers == Leftovers::Delete) fs::remove_all(job.output_dir, ignored);
  try {
    if (!pooled.before.empty()) {
      if (std::string error = run_before(pooled); !error.empty()) {
        end["error"] = std::move(error);
        return static_cast<int>(ExitCode::RunFailed);
      }
    }
    const Result<JobEnd> result = run_job(job, worker_of(job), "");
    if (!result) {
      end["error"] = to_string(result.problems());
      return static_cast<int>(ExitCode::Usage);
    }
    end["error"] = error_of(result->outcome);
    return result->outcome.exit_code();
  } catch (const std::exception& error) {
    end["error"] = std::string(error.what());
    return static_cast<int>(ExitCode::RunFailed);
  }
}

/// Is the forked process: it launches one job, dies with the pool, and keeps nothing open that was the
/// pool's.
[[noreturn]] void be_the_job(const PooledJob& pooled, pid_t pool, const sigset_t& mask) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != pool) ::_exit(static_cast<int>(ExitCode::Peer));
  ::setpgid(0, 0);
  ::close_range(3, ~0U, 0);
  const int null = ::open("/dev/null", O_RDWR);
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(null, fd);
  if (null > STDERR_FILENO) ::close(null);
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  if (!pooled.cores.empty()) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int core : pooled.cores) CPU_SET(core, &set);
    ::sched_setaffinity(0, sizeof set, &set);
  }
  const int counter = count_instructions();
  Json end = Json::object();
  const int code = run_here(pooled, end);
  std::int64_t instructions = 0;
  if (counter >= 0 && ::read(counter, &instructions, sizeof instructions) == sizeof instructions)
    end["instructions"] = instructions;
  (void)write_file_atomically(fs::path(pooled.job.output_dir) / kEnd, end.dump(1) + "\n");
  ::_exit(code);
}

// ---- the kernel's numbers
// ------------------------------------------------------------------------------------

/// Appends a process and all below it.
void add_tree(pid_t pid, std::vector<pid_t>& tree) {
  tree.push_back(pid);
  const std::string number = std::to_string(pid);
  std::ifstream children("/proc/" + number + "/task/" + number + "/children");
  for (pid_t child; children >> child;) add_tree(child, tree);
}

/// "VmRSS:    1234 kB" of a file of the kernel.
std::int64_t kilobytes_of(const std::string& path, const std::vector<std::string_view>& keys) {
  std::ifstream file(path);
  std::int64_t sum = 0;
  for (std::string line; std::getline(file, line);) {
    for (std::string_view key : keys) {
      if (line.starts_with(key)) sum += std::strtoll(line.c_str() + key.size(), nullptr, 10);
    }
  }
  return sum * kKiB;
}

/// Mapped files, LibTorch above all, are there once whatever the number of processes.
std::int64_t memory_of(pid_t pid) {
  std::vector<pid_t> tree;
  add_tree(pid, tree);
  std::int64_t sum = 0;
  for (pid_t one : tree)
    sum += kilobytes_of("/proc/" + std::to_string(one) + "/status", {"RssAnon:", "RssShmem:"});
  return sum;
}

/// Idle and all time of all cores, in ticks.
std::pair<double, double> host_times() {
  std::ifstream file("/proc/stat");
  std::string word;
  file >> word;
  double idle = 0, total = 0, value = 0;
  for (int i = 0; i < 8 && file >> value; ++i) {
    total += value;
    if (i == 3 || i == 4) idle += value;  // idle, iowait
  }
  return {idle, total};
}

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

}  // namespace

Json Counters::to_json() const {
  return Json::object({{"seconds", seconds},
                       {"cpu_s", cpu_s},
                       {"instructions", instructions ? Json(*instructions) : Json()},
                       {"peak_memory_bytes", peak_memory_bytes}});
}

Counters Counters::from(const Json& json) {
  const auto number = [&](const char* key) {
    const Json* value = json.find(key);
    return value && value->is_number() ? value->as_double() : 0.0;
  };
  Counters counters{.seconds = number("seconds"),
                    .cpu_s = number("cpu_s"),
                    .peak_memory_bytes = static_cast<std::int64_t>(number("peak_memory_bytes"))};
  if (const Json* value = json.find("instructions"); value && value->is_number())
    counters.instructions = static_cast<std::int64_t>(value->as_double());
  return counters;
}

RunPool::RunPool(const RunPoolOptions& options) : options_(options) {
  const sigset_t set = watched_signals();
  sigset_t old;
  ::sigprocmask(SIG_BLOCK, &set, &old);
  std::memcpy(old_mask_, &old, sizeof old);
  signals_ = ::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
  if (signals_ < 0) throw ConfigError(std::string("signalfd: ") + std::strerror(errno));
}

RunPool::~RunPool() {
  send(SIGKILL);
  for (const Running& one : running_) ::waitpid(one.pid, nullptr, 0);
  ::close(signals_);
  sigset_t old;
  std::memcpy(&old, old_mask_, sizeof old);
  ::sigprocmask(SIG_SETMASK, &old, nullptr);
}

void RunPool::start(int id, const PooledJob& job) {
  if (queue_of(job.job)) {
    std::error_code ignored;
    if (job.leftovers == Leftovers::Delete) fs::remove_all(job.job.output_dir, ignored);
    queued_.push_back({.id = id, .job = job.job, .before = job.before});
    return;
  }
  sigset_t mask;
  std::memcpy(&mask, old_mask_, sizeof mask);
  const pid_t pool = ::getpid();
  const double started = now_s();
  const pid_t pid = ::fork();  // this program has one thread
  if (pid == 0) be_the_job(job, pool, mask);
  if (pid < 0)
    throw ConfigError(std::string("no process can be started: ") + std::strerror(errno),
                      "fewer jobs at a time, or a higher limit (ulimit -u)");
  ::setpgid(pid, pid);
  running_.push_back({.id = id, .pid = pid, .folder = job.job.output_dir, .started = started});
  if (!sample_at_) {
    std::tie(idle_before_, total_before_) = host_times();
    sample_at_ = steady_clock().now() + kSampleEvery;
  }
}

std::vector<PooledEnd> RunPool::wait() {
  std::vector<PooledEnd> ended;
  arrays_.submit(std::exchange(queued_, {}));
  while (num_running() > 0 && ended.empty()) {
    const TimePoint next = sample_at_.value_or(steady_clock().now() + kSampleEvery);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - steady_clock().now());
    pollfd ready{.fd = signals_, .events = POLLIN, .revents = 0};
    ::poll(&ready, 1, static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, kSampleEvery.count())));
    read_signals();
    reap(ended);
    reap_arrays(ended);
    sample();
    kill_when_due();
    if (options_.waits) options_.waits();
  }
  if (running_.empty()) {
    sample_at_.reset();
    read_signals();  // one that came with the last end
  }
  return ended;
}

void RunPool::read_signals() {
  signalfd_siginfo info;
  while (::read(signals_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) continue;
    const bool again = interrupt_ != 0;
    if (again && signal == SIGHUP) continue;
    interrupt_ = signal;
    send(SIGTERM);
    kill_at_ = steady_clock().now() + (again ? std::chrono::milliseconds(0) : options_.grace);
  }
}

void RunPool::kill_when_due() {
  if (!kill_at_ || steady_clock().now() < *kill_at_) return;
  kill_at_.reset();
  send(SIGKILL);  // the ranks die with their launcher
}

void RunPool::send(int signal) {
  for (const Running& one : running_) ::kill(one.pid, signal);
  if (arrays_.num_tasks() > 0) arrays_.stop(signal == SIGKILL);
}

void RunPool::sample() {
  const TimePoint now = steady_clock().now();
  if (running_.empty() || now < *sample_at_) return;
  sample_at_ = now + kSampleEvery;
  Sample sample{.available = available_memory(), .gpu = nvml_fields()};
  const auto [idle, total] = host_times();
  if (total > total_before_) sample.cpu_percent = 100 * (1 - (idle - idle_before_) / (total - total_before_));
  idle_before_ = idle, total_before_ = total;
  for (Running& one : running_) {
    const std::int64_t memory = memory_of(one.pid);
    one.peak_memory = std::max(one.peak_memory, memory);
    sample.memory += memory;
  }
  if (options_.memory_limit > 0 && sample.memory > options_.memory_limit) {
    for (Running& one : running_) one.over_memory = true;
    send(SIGKILL);
  }
  samples_.push_back(std::move(sample));
}

void RunPool::reap_arrays(std::vector<PooledEnd>& ended) {
  if (arrays_.num_tasks() == 0) return;
  for (BatchEnd& end : arrays_.ended()) {
    PooledEnd pooled{.id = end.id,
                     .exit_code = end.exit_code,
                     .error = std::move(end.error),
                     .counters = {},
                     .ended = now_s()};
    pooled.counters.seconds = end.run_s;
    pooled.started = pooled.ended - end.run_s;
    ended.push_back(std::move(pooled));
  }
}

void RunPool::reap(std::vector<PooledEnd>& ended) {
  for (std::size_t i = 0; i < running_.size();) {
    Running& one = running_[i];
    int status = 0;
    rusage usage{};
    if (::wait4(one.pid, &status, WNOHANG, &usage) != one.pid) {
      ++i;
      continue;
    }
    PooledEnd end{.id = one.id,
                  .exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
                  .over_memory = one.over_memory,
                  .started = one.started,
                  .ended = now_s()};
    // Short jobs have few samples; the kernel's figure has mapped files in it.
    end.counters = {
        .seconds = end.ended - end.started,
        .cpu_s = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime),
        .peak_memory_bytes = one.peak_memory > 0 ? one.peak_memory : std::int64_t{usage.ru_maxrss} * kKiB};
    if (const Result<Json> said = read_json((fs::path(one.folder) / kEnd).string()); said) {
      if (const Json* error = said->find("error"); error && error->is_string())
        end.error = error->as_string();
      if (const Json* count = said->find("instructions"); count && count->is_number())
        end.counters.instructions = static_cast<std::int64_t>(count->as_double());
    }
    if (end.over_memory) end.error = "ended: the jobs together went over the memory limit";
    if (end.error.empty() && end.exit_code != 0)
      end.error = WIFSIGNALED(status) ? "its launcher was killed by " + signal_text(WTERMSIG(status))
                                      : "exit code " + std::to_string(end.exit_code);
    ended.push_back(std::move(end));
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

HostUse RunPool::take_use() {
  const std::vector<Sample> samples = std::exchange(samples_, {});
  const std::size_t cut = samples.size() / 10;
  HostUse use;
  if (samples.empty()) return use;
  use.available_memory_bytes = samples[cut].available;
  std::map<std::string, int> counts;
  for (std::size_t i = cut; i < samples.size() - cut; ++i) {
    use.cpu_percent += samples[i].cpu_percent / static_cast<double>(samples.size() - 2 * cut);
    use.memory_bytes = std::max(use.memory_bytes, samples[i].memory);
    use.available_memory_bytes = std::min(use.available_memory_bytes, samples[i].available);
    for (const auto& [field, value] : samples[i].gpu) {
      ++counts[field];
      use.gpu[field] = is_peak_field(field) ? std::max(use.gpu[field], value) : use.gpu[field] + value;
    }
  }
  for (auto& [field, value] : use.gpu) {
    if (!is_peak_field(field)) value /= counts[field];
  }
  return use;
}

RunSlots::RunSlots(const JobSpec& job) : queued_(queue_of(job) != nullptr) {
  if (queued_) return;
  Result<std::vector<std::vector<HostEntry>>> groups = host_groups(job);
  if (!groups) throw ConfigError(to_string(groups.problems()));
  groups_ = *std::move(groups);
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &set)) cores_.push_back(core);
  }
  const std::string* threads = job.find("threads");
  width_ = job.ranks * (threads ? std::max(1, std::atoi(threads->c_str())) : 1);
}

int RunSlots::count() const {
  constexpr int kQueued = 1000;  // the queue starts as many as there is room for
  if (queued_) return kQueued;
  if (!groups_.empty()) return static_cast<int>(groups_.size());
  return std::max(1, static_cast<int>(cores_.size()) / width_);
}

void RunSlots::place(PooledJob& run, int slot) const {
  if (queued_) return;
  if (!groups_.empty())
    return place_on_group(run.job, groups_[static_cast<std::size_t>(slot) % groups_.size()]);
  if (static_cast<std::size_t>(width_) >= cores_.size()) return;
  for (int i = 0; i < width_; ++i)
    run.cores.push_back(cores_[static_cast<std::size_t>(slot * width_ + i) % cores_.size()]);
}

std::int64_t available_memory() {
  return kilobytes_of("/proc/meminfo", {"MemAvailable:"});
}

}  // namespace millrace
