#include "experiments/io/capture/ptrace_source.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <fstream>
#include <map>

namespace millrace {
namespace {

constexpr int kNone = -1;
/// A row says where the values of an event stand among the six arguments of a call.
struct CallRow {
  long number;
  FileCall call;
  int descriptor = kNone;
  int offset = kNone;
  int path = kNone;
  int mode = kNone;
  int target = kNone;
  int target_offset = kNone;
};
constexpr CallRow kCalls[] = {
    {SYS_read, FileCall::Read, 0},
    {SYS_readv, FileCall::Read, 0},
    {SYS_pread64, FileCall::Read, 0, 3},
    {SYS_preadv, FileCall::Read, 0, 3},
    {SYS_preadv2, FileCall::Read, 0, 3},
    {SYS_write, FileCall::Write, 0},
    {SYS_writev, FileCall::Write, 0},
    {SYS_pwrite64, FileCall::Write, 0, 3},
    {SYS_pwritev, FileCall::Write, 0, 3},
    {SYS_pwritev2, FileCall::Write, 0, 3},
    // Offsets of copies are addresses.
    {SYS_sendfile, FileCall::Copy, 1, 2, kNone, kNone, 0},
    {SYS_copy_file_range, FileCall::Copy, 0, 1, kNone, kNone, 2, 3},
    {SYS_splice, FileCall::Copy, 0, 1, kNone, kNone, 2, 3},
    {SYS_tee, FileCall::Copy, 0, kNone, kNone, kNone, 1},
    {SYS_vmsplice, FileCall::Copy, 0},
    {SYS_open, FileCall::Open},
    {SYS_openat, FileCall::Open},
    {SYS_openat2, FileCall::Open},
    {SYS_creat, FileCall::Open},
    {SYS_close, FileCall::Close, 0},
    {SYS_mkdir, FileCall::Make, kNone, kNone, 0, 1},
    {SYS_mkdirat, FileCall::Make, kNone, kNone, 1, 2},
    {SYS_rmdir, FileCall::Remove, kNone, kNone, 0},
    {SYS_unlink, FileCall::Unlink, kNone, kNone, 0},
    {SYS_unlinkat, FileCall::Unlink, kNone, kNone, 1},
    {SYS_mmap, FileCall::Map, 4},
    {SYS_lseek, FileCall::Seek, 0},
    {SYS_dup, FileCall::Duplicate, 0},
    {SYS_dup2, FileCall::Duplicate, 0},
    {SYS_dup3, FileCall::Duplicate, 0},
    {SYS_ioctl, FileCall::Clone, 0},
    {SYS_prctl, FileCall::Rename},
    {SYS_io_submit, FileCall::Unseen},
    {SYS_io_uring_setup, FileCall::Unseen},
    {SYS_io_uring_enter, FileCall::Unseen},
};

const CallRow* row_of(std::uint64_t number) {
  const auto found = std::find_if(std::begin(kCalls), std::end(kCalls), [&](const CallRow& row) {
    return static_cast<std::uint64_t>(row.number) == number;
  });
  return found == std::end(kCalls) ? nullptr : &*found;
}

/// The filter of seccomp: stop at the calls of the table, let all others run. A mapping without a file
/// passes, and so do ioctls that clone nothing and prctls that name nothing.
std::vector<sock_filter> seccomp_filter() {
  const auto load = [](std::size_t at) {
    return sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(at));
  };
  const auto answer = [](std::uint32_t action) { return sock_filter BPF_STMT(BPF_RET | BPF_K, action); };
  const auto skip_unless = [](std::uint32_t value, std::uint8_t skipped) {
    return sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, skipped);
  };
  // Calls of another architecture (32-bit programs) have other numbers: they run unseen.
  std::vector<sock_filter> filter{load(offsetof(seccomp_data, arch)),
                                  BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
                                  answer(SECCOMP_RET_ALLOW), load(offsetof(seccomp_data, nr))};
  const auto load_argument = [&](std::size_t place) {
    return load(offsetof(seccomp_data, args) + place * sizeof(std::uint64_t));
  };
  for (const CallRow& row : kCalls) {
    std::vector<sock_filter> judged{answer(SECCOMP_RET_TRACE)};
    if (row.call == FileCall::Map) {
      judged = {load_argument(4), skip_unless(UINT32_MAX, 1), answer(SECCOMP_RET_ALLOW),
                answer(SECCOMP_RET_TRACE)};
    } else if (row.call == FileCall::Clone) {
      judged = {load_argument(1),          skip_unless(static_cast<std::uint32_t>(FICLONE), 1),
                answer(SECCOMP_RET_TRACE), skip_unless(static_cast<std::uint32_t>(FICLONERANGE), 1),
                answer(SECCOMP_RET_TRACE), answer(SECCOMP_RET_ALLOW)};
    } else if (row.call == FileCall::Rename) {
      judged = {load_argument(0), skip_unless(PR_SET_NAME, 1), answer(SECCOMP_RET_TRACE),
                answer(SECCOMP_RET_ALLOW)};
    }
    filter.push_back(
        skip_unless(static_cast<std::uint32_t>(row.number), static_cast<std::uint8_t>(judged.size())));
    filter.insert(filter.end(), judged.begin(), judged.end());
  }
  filter.push_back(answer(SECCOMP_RET_ALLOW));
  return filter;
}

std::int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

std::string line_of(pid_t thread, const char* file) {
  std::ifstream in("/proc/" + std::to_string(thread) + "/" + file);
  std::string line;
  std::getline(in, line);
  return line;
}

std::uint32_t process_of(pid_t thread) {
  std::ifstream in("/proc/" + std::to_string(thread) + "/status");
  std::string word;
  std::uint32_t process = 0;
  while (in >> word) {
    if (word == "Tgid:" && in >> process) return process;
  }
  return static_cast<std::uint32_t>(thread);
}

std::string text_at(pid_t thread, std::uint64_t address) {
  char buffer[PATH_MAX];
  // A page at a time: the page behind the text may not be there.
  std::string text;
  while (text.size() < sizeof buffer) {
    const std::size_t part = 4096 - (address + text.size()) % 4096;
    const iovec here{buffer, std::min(part, sizeof buffer)};
    const iovec there{reinterpret_cast<void*>(address + text.size()), here.iov_len};
    const ssize_t got = process_vm_readv(thread, &here, 1, &there, 1, 0);
    if (got <= 0) break;
    const std::size_t length = strnlen(buffer, static_cast<std::size_t>(got));
    text.append(buffer, length);
    if (length < static_cast<std::size_t>(got)) break;
  }
  return text;
}

/// Returns the offset at an address of the thread's memory; -1: no address, or none that can be read.
std::int64_t offset_at(pid_t thread, std::uint64_t address) {
  std::int64_t offset = -1;
  const iovec here{&offset, sizeof offset}, there{reinterpret_cast<void*>(address), sizeof offset};
  if (address == 0 || process_vm_readv(thread, &here, 1, &there, 1, 0) != sizeof offset) return -1;
  return offset;
}

/// Installs the filter in this process. Returns 0, or the negative errno.
int install_filter() {
  std::vector<sock_filter> filter = seccomp_filter();
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  const auto install = [&] { return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0; };
  // Root may install a filter without giving up set-user-id programs.
  return install() || (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && install()) ? 0 : -errno;
}

class Tracer {
 public:
  Tracer(pid_t command, std::int64_t floor_ns, const CaptureSink& sink)
      : command_(command), floor_ns_(floor_ns), sink_(sink) {}

  /// Returns the status of the command, when nothing traced is left.
  int run() {
    int status = 0;
    while (true) {
      const pid_t thread = waitpid(-1, &status, __WALL | __WNOTHREAD);
      if (thread < 0 && errno == EINTR) continue;
      if (thread < 0) return command_status_;
      const std::int64_t now = now_ns();
      if (WIFSTOPPED(status)) {
        stopped(thread, status, now);
      } else {
        ended(thread, status);
      }
    }
  }

 private:
  struct Thread {
    std::uint32_t process = 0;
    std::string name;
    const CallRow* row = nullptr;  ///< the call it is in
    FileEvent event;
    std::int64_t begin_ns = 0;
  };

  Thread& known(pid_t thread) {
    Thread& state = threads_[thread];
    if (state.process == 0) {
      state.process = process_of(thread);
      state.name = line_of(thread, "comm");
    }
    return state;
  }

  void stopped(pid_t thread, int status, std::int64_t now) {
    const int signal = WSTOPSIG(status), event = status >> 16;
    if (signal == (SIGTRAP | 0x80)) return returned(thread, now);
    switch (event) {
      case PTRACE_EVENT_SECCOMP:
        return called(thread);
      case PTRACE_EVENT_EXEC: {
        unsigned long former = 0;
        ptrace(PTRACE_GETEVENTMSG, thread, nullptr, &former);
        if (static_cast<pid_t>(former) != thread) threads_.erase(static_cast<pid_t>(former));
        threads_.erase(thread);  // another name
        sink_.forget(static_cast<std::uint32_t>(thread));
        return go_on(thread, PTRACE_CONT, 0);
      }
      case PTRACE_EVENT_STOP:
        // A stop of the whole process, as by Ctrl-Z, lasts until SIGCONT. A new thread just goes on.
        if (signal == SIGSTOP || signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU)
          return go_on(thread, PTRACE_LISTEN, 0);
        return go_on(thread, PTRACE_CONT, 0);
      default:
        return go_on(thread, PTRACE_CONT, event == 0 ? signal : 0);
    }
  }

  static void go_on(pid_t thread, __ptrace_request how, int signal) {
    ptrace(how, thread, nullptr, reinterpret_cast<void*>(static_cast<std::intptr_t>(signal)));
  }

  void called(pid_t thread) {
    Thread& state = known(thread);
    __ptrace_syscall_info info{};
    ptrace(PTRACE_GET_SYSCALL_INFO, thread, reinterpret_cast<void*>(sizeof info), &info);
    state.row = info.op == PTRACE_SYSCALL_INFO_SECCOMP ? row_of(info.seccomp.nr) : nullptr;
    if (state.row) {
      const auto argument = [&](int place) {
        return place == kNone ? std::int64_t{-1} : static_cast<std::int64_t>(info.seccomp.args[place]);
      };
      const CallRow& row = *state.row;
      state.event = {.call = row.call, .process = state.process};
      // Descriptors are 32 bits wide; the upper half of the argument may hold anything.
      state.event.descriptor = static_cast<std::int32_t>(argument(row.descriptor));
      state.event.target = static_cast<std::int32_t>(argument(row.target));
      const auto offset = [&](int place) {
        const bool pointed = row.call == FileCall::Copy && place != kNone;
        return pointed ? offset_at(thread, info.seccomp.args[place]) : argument(place);
      };
      state.event.offset = offset(row.offset);
      state.event.target_offset = offset(row.target_offset);
      state.event.mode = row.mode == kNone ? 0 : argument(row.mode);
      if (row.path != kNone) state.event.path = text_at(thread, info.seccomp.args[row.path]);
      // unlinkat with this flag removes a folder.
      if (row.number == SYS_unlinkat && (info.seccomp.args[2] & AT_REMOVEDIR) != 0)
        state.event.call = FileCall::Remove;
    }
    state.begin_ns = now_ns();
    go_on(thread, PTRACE_SYSCALL, 0);
  }

  void returned(pid_t thread, std::int64_t now) {
    Thread& state = known(thread);
    __ptrace_syscall_info info{};
    ptrace(PTRACE_GET_SYSCALL_INFO, thread, reinterpret_cast<void*>(sizeof info), &info);
    if (state.row && info.op == PTRACE_SYSCALL_INFO_EXIT) {
      FileEvent& event = state.event;
      if (event.call == FileCall::Rename) state.name = line_of(thread, "comm");
      event.end_ns = now;
      event.latency_ns = std::max<std::int64_t>(now - state.begin_ns - floor_ns_, 0);
      event.result = info.exit.rval;
      event.command = state.name;
      // An address is no error, however large.
      if (event.call == FileCall::Map && !info.exit.is_error) event.result &= INT64_MAX;
      if (event.call != FileCall::Rename) sink_.event(event);
    }
    state.row = nullptr;
    go_on(thread, PTRACE_CONT, 0);
  }

  void ended(pid_t thread, int status) {
    threads_.erase(thread);
    sink_.forget(static_cast<std::uint32_t>(thread));
    if (thread != command_) return;
    command_status_ = status;
    sink_.ended(status);
  }

  pid_t command_;
  std::int64_t floor_ns_;
  const CaptureSink& sink_;
  std::map<pid_t, Thread> threads_;
  int command_status_ = 0;
};

}  // namespace

TraceResult trace_by_ptrace(const TracedCommand& command, std::int64_t floor_ns, const CaptureSink& sink) {
  TraceResult result;
  int go[2], failure[2];
  if (pipe2(go, O_CLOEXEC) != 0) return {.refused = std::string("pipe: ") + std::strerror(errno)};
  if (pipe2(failure, O_CLOEXEC) != 0) return {.refused = std::string("pipe: ") + std::strerror(errno)};
  const pid_t child = fork();
  if (child == 0) {
    close(go[1]);
    become(command, go[0], failure[1], install_filter);
  }
  close(go[0]);
  close(failure[1]);
  const long options = PTRACE_O_TRACESECCOMP | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK |
                       PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC | PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL;
  if (child < 0) {
    result.refused = std::string("fork: ") + std::strerror(errno);
  } else if (ptrace(PTRACE_SEIZE, child, nullptr, reinterpret_cast<void*>(options)) != 0) {
    result.refused = std::string("ptrace: ") + std::strerror(errno);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  } else {
    sink.started(static_cast<std::uint32_t>(child));
    (void)!write(go[1], "g", 1);
    result.status = Tracer(child, floor_ns, sink).run();
    int error = 0;
    if (read(failure[0], &error, sizeof error) == sizeof error) {
      if (error < 0) result.refused = std::string("seccomp: ") + std::strerror(-error);
      if (error > 0) result.exec_error = error;
    }
  }
  close(go[1]);
  close(failure[0]);
  return result;
}

std::int64_t measure_ptrace_floor() {
  constexpr int kCalls = 500;
  std::vector<std::int64_t> latencies;
  const CaptureSink sink{
      .event =
          [&](const FileEvent& event) {
            if (event.call == FileCall::Seek) latencies.push_back(event.latency_ns);
          },
      .forget = [](std::uint32_t) {},
      .forked = [](std::uint32_t, std::uint32_t) {},
      .started = [](std::uint32_t) {},
      .ended = [](int) {},
  };
  const TracedCommand idle{.body =
                               [] {
                                 for (int i = 0; i < kCalls; ++i) lseek(-1, 0, SEEK_CUR);
                                 _exit(0);
                               },
                           .words = {}};
  trace_by_ptrace(idle, 0, sink);
  if (latencies.empty()) return 0;
  const auto middle = latencies.begin() + static_cast<std::ptrdiff_t>(latencies.size() / 2);
  std::nth_element(latencies.begin(), middle, latencies.end());
  return *middle;
}

}  // namespace millrace
