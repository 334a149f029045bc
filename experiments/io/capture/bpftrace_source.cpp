#include "experiments/io/capture/bpftrace_source.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "runtime/base/progress_line.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;

/// A kind of call: its tracepoints, the letter of its lines, and what of its arguments is told.
struct Probe {
  const char* call;
  char letter;
  const char* descriptor;        ///< an expression of bpftrace
  const char* offset;            ///< of a copy: the address of the offset
  const char* path;              ///< nullptr: none
  const char* target = nullptr;  ///< of a copy: the descriptor written to
  const char* target_offset = "-1";
  const char* only = nullptr;  ///< a condition on the arguments; nullptr: all calls
};
constexpr Probe kProbes[] = {
    {"read", 'r', "args->fd", "-1", nullptr},
    {"readv", 'r', "args->fd", "-1", nullptr},
    {"pread64", 'r', "args->fd", "args->pos", nullptr},
    {"preadv", 'r', "args->fd", "args->pos_l", nullptr},
    {"preadv2", 'r', "args->fd", "args->pos_l", nullptr},
    {"write", 'w', "args->fd", "-1", nullptr},
    {"writev", 'w', "args->fd", "-1", nullptr},
    {"pwrite64", 'w', "args->fd", "args->pos", nullptr},
    {"pwritev", 'w', "args->fd", "args->pos_l", nullptr},
    {"pwritev2", 'w', "args->fd", "args->pos_l", nullptr},
    {"sendfile64", 'y', "args->in_fd", "args->offset", nullptr, "args->out_fd"},
    {"copy_file_range", 'y', "args->fd_in", "args->off_in", nullptr, "args->fd_out", "args->off_out"},
    {"splice", 'y', "args->fd_in", "args->off_in", nullptr, "args->fd_out", "args->off_out"},
    {"tee", 'y', "args->fdin", "-1", nullptr, "args->fdout"},
    {"vmsplice", 'y', "args->fd", "-1", nullptr, "-1"},
    {"close", 'c', "args->fd", "-1", nullptr},
    {"lseek", 's', "args->fd", "-1", nullptr},
    {"dup", 'd', "args->fildes", "-1", nullptr},
    {"dup2", 'd', "args->oldfd", "-1", nullptr},
    {"dup3", 'd', "args->oldfd", "-1", nullptr},
    {"mmap", 'm', "args->fd", "-1", nullptr},
    {"mkdir", 'M', "-1", "args->mode", "args->pathname"},
    {"mkdirat", 'M', "-1", "args->mode", "args->pathname"},
    {"rmdir", 'R', "-1", "-1", "args->pathname"},
    {"unlink", 'U', "-1", "-1", "args->pathname"},
    {"unlinkat", 'U', "-1", "args->flag", "args->pathname"},
    // FICLONE and FICLONERANGE
    {"ioctl", 'k', "args->fd", "-1", nullptr, nullptr, "-1",
     "(args->cmd == 0x40049409 || args->cmd == 0x4020940d)"},
    {"io_submit", 'x', "-1", "-1", nullptr},
    {"io_uring_setup", 'x', "-1", "-1", nullptr},
    {"io_uring_enter", 'x', "-1", "-1", nullptr},
    // Last: when these are seen, all others are attached.
    {"creat", 'o', "-1", "-1", "args->pathname"},
    {"openat2", 'o', "-1", "-1", "args->filename"},
    {"open", 'o', "-1", "-1", "args->filename"},
    {"openat", 'o', "-1", "-1", "args->filename"},
};
constexpr const char* kSentinel = "/dev/null";

FileCall call_of(char letter) {
  switch (letter) {
    case 'r':
      return FileCall::Read;
    case 'w':
      return FileCall::Write;
    case 'y':
      return FileCall::Copy;
    case 'k':
      return FileCall::Clone;
    case 'o':
      return FileCall::Open;
    case 'c':
      return FileCall::Close;
    case 's':
      return FileCall::Seek;
    case 'd':
      return FileCall::Duplicate;
    case 'm':
      return FileCall::Map;
    case 'M':
      return FileCall::Make;
    case 'R':
      return FileCall::Remove;
    case 'U':
      return FileCall::Unlink;
    default:
      return FileCall::Unseen;
  }
}

/// A child that this source started.
struct Child {
  pid_t pid = -1;
  int output = -1;  ///< what it prints; -1: nowhere
};

Child start_bpftrace(const std::string& program) {
  int pipe_of[2];
  if (pipe2(pipe_of, O_CLOEXEC) != 0) return {};
  const pid_t pid = fork();
  if (pid == 0) {
    // Ctrl-C is for the command; bpftrace is told when the command has ended.
    setpgid(0, 0);
    unblock_signals();
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    dup2(pipe_of[1], STDOUT_FILENO);
    dup2(pipe_of[1], STDERR_FILENO);
    setenv("BPFTRACE_STRLEN", "200", 1);
    setenv("BPFTRACE_PERF_RB_PAGES", "2048", 1);
    execlp("bpftrace", "bpftrace", "-e", program.c_str(), nullptr);
    _exit(127);
  }
  close(pipe_of[1]);
  if (pid < 0) close(pipe_of[0]);
  return pid < 0 ? Child{} : Child{pid, pipe_of[0]};
}

/// Reads lines as they come.
class Lines {
 public:
  explicit Lines(int fd) : fd_(fd) {}
  /// False: nothing came for `patience`, or the other side has closed (then `ended`).
  bool next(std::string& line, std::chrono::milliseconds patience) {
    while (true) {
      const std::size_t end = buffer_.find('\n', from_);
      if (end != std::string::npos) {
        line.assign(buffer_, from_, end - from_);
        from_ = end + 1;
        return true;
      }
      buffer_.erase(0, from_);
      from_ = 0;
      pollfd ready{fd_, POLLIN, 0};
      if (poll(&ready, 1, static_cast<int>(patience.count())) <= 0) return false;
      char part[1 << 16];
      const ssize_t got = read(fd_, part, sizeof part);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return ended = true, false;
      buffer_.append(part, static_cast<std::size_t>(got));
    }
  }
  bool ended = false;

 private:
  int fd_;
  std::string buffer_;
  std::size_t from_ = 0;
};

/// "r END LATENCY PID FD OFFSET RESULT COMM|PATH" into an event. A copy has "FD OFFSET" of its target for a
/// path.
bool parse(const std::string& line, FileEvent& event) {
  char letter = 0;
  long long end = 0, latency = 0, pid = 0, descriptor = 0, offset = 0, result = 0;
  int at = 0;
  if (std::sscanf(line.c_str(), "%c %lld %lld %lld %lld %lld %lld %n", &letter, &end, &latency, &pid,
                  &descriptor, &offset, &result, &at) < 7)
    return false;
  event = {.call = call_of(letter),
           .end_ns = end,
           .latency_ns = latency,
           .process = static_cast<std::uint32_t>(pid),
           .result = result,
           .descriptor = static_cast<std::int32_t>(descriptor),
           .offset = offset};
  const std::size_t bar = line.find('|', static_cast<std::size_t>(at));
  event.command = line.substr(static_cast<std::size_t>(at), bar - static_cast<std::size_t>(at));
  if (bar != std::string::npos) event.path = line.substr(bar + 1);
  constexpr long long kRemoveFolder = AT_REMOVEDIR;
  if (event.call == FileCall::Unlink && offset > 0 && (offset & kRemoveFolder) != 0)
    event.call = FileCall::Remove;
  if (event.call == FileCall::Make) event.mode = offset;
  long long target = -1, target_offset = -1;
  if (event.call == FileCall::Copy &&
      std::sscanf(event.path.c_str(), "%lld %lld", &target, &target_offset) == 2) {
    event.target = static_cast<std::int32_t>(target);
    event.target_offset = target_offset;
  }
  return !(event.call == FileCall::Map && event.descriptor < 0);
}

class BpftraceRun {
 public:
  BpftraceRun(const CaptureSink& sink, const std::function<void(std::string_view row)>& bio)
      : sink_(sink), bio_(bio) {}

  BpftraceResult run(const TracedCommand& command) {
    // Processes that the command leaves behind become children of this one, so that their ends are seen.
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    int go[2], failure[2];
    if (pipe2(go, O_CLOEXEC) != 0 || pipe2(failure, O_CLOEXEC) != 0)
      return refused(std::string("pipe: ") + std::strerror(errno));
    command_ = fork();
    if (command_ == 0) {
      close(go[1]);
      become(command, go[0], failure[1]);
    }
    close(go[0]);
    close(failure[1]);
    if (command_ < 0) return refused(std::string("fork: ") + std::strerror(errno));
    tracer_ = start_bpftrace(bpftrace_program(command_, getpid()));
    std::string words;
    if (!wait_for_probes(words)) {
      kill(command_, SIGKILL);
      waitpid(command_, nullptr, 0);
      stop_tracer();
      return refused("bpftrace: " + words);
    }
    sink_.started(static_cast<std::uint32_t>(command_));
    (void)!write(go[1], "g", 1);
    close(go[1]);
    follow();
    int error = 0;
    if (read(failure[0], &error, sizeof error) == sizeof error) result_.trace.exec_error = error;
    close(failure[0]);
    return std::move(result_);
  }

 private:
  BpftraceResult refused(const std::string& why) {
    BpftraceResult result;
    result.trace.refused = why;
    return result;
  }

  /// Opens the sentinel until bpftrace tells of it. `words`: what bpftrace said, if it ended.
  bool wait_for_probes(std::string& words) {
    if (tracer_.pid < 0) return words = "cannot be started", false;
    lines_ = std::make_unique<Lines>(tracer_.output);
    const WorkingLine working("bpftrace places its probes");
    const auto deadline = std::chrono::steady_clock::now() + 60s;
    std::string line;
    while (std::chrono::steady_clock::now() < deadline) {
      const int sentinel = open(kSentinel, O_RDONLY | O_CLOEXEC);
      if (sentinel >= 0) close(sentinel);
      while (lines_->next(line, 20ms)) {
        if (line == "ready") return true;
        if (line.find("ERROR") != std::string::npos && line.find("MEMLOCK") == std::string::npos)
          words = line;
      }
      if (lines_->ended) break;
    }
    if (words.empty()) words = "its probes were not attached within 60 s";
    return false;
  }

  void follow() {
    std::string line;
    bool all_ended = false;
    auto end = std::chrono::steady_clock::time_point::max();
    while (!lines_->ended && std::chrono::steady_clock::now() < end) {
      while (lines_->next(line, 50ms)) take(line);
      if (!all_ended && reap()) {
        all_ended = true;
        if (tracer_.pid > 0) kill(tracer_.pid, SIGINT);  // it prints what it has, and ends
        end = std::chrono::steady_clock::now() + 30s;
      }
    }
    stop_tracer();
  }

  /// Whether nothing of the command is left.
  bool reap() {
    int status = 0;
    while (true) {
      const pid_t pid = waitpid(-1, &status, WNOHANG | __WNOTHREAD);
      if (pid == 0) return !any_left();
      if (pid < 0) return true;
      if (pid == tracer_.pid) {
        tracer_.pid = -1;
      } else if (pid == command_) {
        result_.trace.status = status;
        sink_.ended(status);
        command_ = -1;
      }
    }
  }

  /// Children of this thread other than bpftrace itself.
  bool any_left() const {
    std::set<pid_t> children;
    const std::string folder = "/proc/self/task/" + std::to_string(gettid()) + "/children";
    std::FILE* const file = std::fopen(folder.c_str(), "r");
    if (!file) return command_ >= 0;
    long pid = 0;
    while (std::fscanf(file, "%ld", &pid) == 1) children.insert(static_cast<pid_t>(pid));
    std::fclose(file);
    children.erase(tracer_.pid);
    return !children.empty();
  }

  void take(const std::string& line) {
    FileEvent event;
    long long lost = 0;
    std::uint32_t parent = 0, child = 0;
    if (line.starts_with("b ")) {
      take_bio(line);
    } else if (std::sscanf(line.c_str(), "Lost %lld events", &lost) == 1) {
      result_.lost += lost;
    } else if (std::sscanf(line.c_str(), "f %u %u", &parent, &child) == 2) {
      sink_.forked(parent, child);
    } else if (line.starts_with("e ")) {
      sink_.forget(static_cast<std::uint32_t>(std::strtoul(line.c_str() + 2, nullptr, 10)));
    } else if (parse(line, event)) {
      sink_.event(event);
    }
  }

  /// Takes "b NS PID MAJOR:MINOR RWBS BYTES SECTOR LATENCY COMMAND". Flushes and discards are no reads or
  /// writes.
  void take_bio(const std::string& line) {
    char device[32], way[16];
    long long ns = 0, pid = 0, bytes = 0, sector = 0, latency = 0;
    int at = 0;
    if (std::sscanf(line.c_str(), "b %lld %lld %31s %15s %lld %lld %lld %n", &ns, &pid, device, way, &bytes,
                    &sector, &latency, &at) < 7 ||
        (way[0] != 'R' && way[0] != 'W'))
      return;
    std::string command = line.substr(static_cast<std::size_t>(at));
    std::replace(command.begin(), command.end(), ' ', '_');
    bio_(std::to_string(ns) + " " + std::to_string(pid) + " " + escaped(command) + " " + disk_name(device) +
         " " + way[0] + " " + std::to_string(bytes) + " " + std::to_string(sector) + " " +
         std::to_string(latency) + "\n");
  }

  /// "254:0" -> "vda".
  const std::string& disk_name(const std::string& device) {
    std::string& name = disks_[device];
    if (name.empty()) {
      std::error_code error;
      name = std::filesystem::read_symlink("/sys/dev/block/" + device, error).filename().string();
      if (error || name.empty()) name = device;
    }
    return name;
  }

  void stop_tracer() {
    if (tracer_.pid > 0) {
      kill(tracer_.pid, SIGKILL);
      waitpid(tracer_.pid, nullptr, 0);
      tracer_.pid = -1;
    }
    if (tracer_.output >= 0) close(std::exchange(tracer_.output, -1));
  }

  const CaptureSink& sink_;
  const std::function<void(std::string_view row)>& bio_;
  BpftraceResult result_;
  pid_t command_ = -1;
  Child tracer_;
  std::unique_ptr<Lines> lines_;
  std::map<std::string, std::string> disks_;
};

}  // namespace

std::string bpftrace_program(int process, int self) {
  const std::string pid = std::to_string(process), own = std::to_string(self);
  std::string text =
      "BEGIN { @t[" + pid +
      "] = 1; }\n"
      "tracepoint:sched:sched_process_fork /@t[pid]/ { @t[args->child_pid] = 1; "
      "printf(\"f %d %d\\n\", pid, args->child_pid); }\n"
      "tracepoint:sched:sched_process_exit /@t[pid] && pid == tid/ { printf(\"e %d\\n\", pid); }\n"
      "tracepoint:block:block_rq_issue /@t[pid] || args->rwbs == \"W\"/ {\n"
      "  @b[args->dev, args->sector] = nsecs; @p[args->dev, args->sector] = pid; "
      "@c[args->dev, args->sector] = comm; }\n"
      "tracepoint:block:block_rq_complete /@b[args->dev, args->sector]/ {\n"
      "  printf(\"b %llu %d %d:%d %s %llu %llu %llu %s\\n\", nsecs, @p[args->dev, args->sector], "
      "args->dev >> 20, args->dev & 1048575, args->rwbs, (uint64)args->nr_sector * 512, "
      "args->sector, nsecs - @b[args->dev, args->sector], @c[args->dev, args->sector]);\n"
      "  delete(@b[args->dev, args->sector]); delete(@p[args->dev, args->sector]); "
      "delete(@c[args->dev, args->sector]); }\n";
  for (const Probe& probe : kProbes) {
    const bool sentinel = probe.letter == 'o';
    const std::string call = probe.call, more = probe.path ? "|%s" : probe.target ? "|%lld %lld" : "";
    const auto offset = [&](const std::string& of) {
      return probe.target && of != "-1" ? "((uint64)" + of + " != 0 ? *(int64*)uptr(" + of + ") : -1)" : of;
    };
    text += "tracepoint:syscalls:sys_enter_" + call + " /@t[pid]" + (sentinel ? " || pid == " + own : "") +
            (probe.only ? std::string(" && ") + probe.only : "") + "/ { @s[tid] = nsecs; @f[tid] = (int64)" +
            probe.descriptor + "; @o[tid] = (int64)" + offset(probe.offset) + ";" +
            (probe.path ? std::string(" @n[tid] = ") + probe.path + ";" : "") +
            (probe.target ? std::string(" @g[tid] = (int64)") + probe.target + "; @h[tid] = (int64)" +
                                offset(probe.target_offset) + ";"
                          : "") +
            " }\n";
    text += "tracepoint:syscalls:sys_exit_" + call + " /@s[tid]/ { ";
    if (sentinel) text += "if (pid == " + own + ") { printf(\"ready\\n\"); } else { ";
    text += std::string("printf(\"") + probe.letter + " %llu %llu %d %lld %lld %lld %s" + more +
            "\\n\", nsecs, nsecs - @s[tid], pid, @f[tid], @o[tid], args->ret, comm" +
            (probe.path     ? ", str(@n[tid])"
             : probe.target ? ", @g[tid], @h[tid]"
                            : "") +
            ");";
    if (sentinel) text += " }";
    text += " delete(@s[tid]); delete(@f[tid]); delete(@o[tid]);";
    if (probe.path) text += " delete(@n[tid]);";
    if (probe.target) text += " delete(@g[tid]); delete(@h[tid]);";
    text += " }\n";
  }
  return text +=
         "END { clear(@t); clear(@b); clear(@p); clear(@c); clear(@s); clear(@f); clear(@o); clear(@n); "
         "clear(@g); clear(@h); }\n";
}

std::string why_no_bpftrace() {
  if (geteuid() != 0) return "it needs root";
  std::error_code error;
  if (!std::filesystem::exists("/sys/kernel/tracing/events/syscalls", error) &&
      !std::filesystem::exists("/sys/kernel/debug/tracing/events/syscalls", error))
    return "the kernel's tracepoints are not mounted (mount -t tracefs none /sys/kernel/tracing)";
  const Child child = start_bpftrace("BEGIN { printf(\"ready\\n\"); exit(); }");
  if (child.pid < 0) return "it cannot be started";
  Lines lines(child.output);
  std::string line, last;
  bool works = false;
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  while (!lines.ended && std::chrono::steady_clock::now() < deadline) {
    while (lines.next(line, 100ms)) {
      works = works || line == "ready";
      if (!line.empty()) last = line;
    }
  }
  kill(child.pid, SIGKILL);
  waitpid(child.pid, nullptr, 0);
  close(child.output);
  if (works) return "";
  return last.empty() ? "it is not installed" : "it says: " + escaped(last);
}

BpftraceResult trace_by_bpftrace(const TracedCommand& command, const CaptureSink& sink,
                                 const std::function<void(std::string_view row)>& bio) {
  BpftraceResult result = BpftraceRun(sink, bio).run(command);
  prctl(PR_SET_CHILD_SUBREAPER, 0);
  return result;
}

}  // namespace millrace
