#include "driver/checkpoint/own_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <new>
#include <optional>

#include "runtime/base/clock.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

constexpr int kFailed = 1, kNoMemory = 2;  // exit codes of the child
constexpr const char* kHarm = "the file is damaged, or was made to do harm";

/// The address space of this process.
Bytes mapped_bytes() {
  Bytes pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * ::sysconf(_SC_PAGESIZE);
}

/// A stricter limit of this process's own stays.
void limit(__rlimit_resource what, std::uint64_t soft, std::uint64_t hard) {
  rlimit both{};
  if (::getrlimit(what, &both) != 0) ::_exit(kFailed);
  both.rlim_max = std::min<rlim_t>(both.rlim_max, hard);
  both.rlim_cur = std::min<rlim_t>({both.rlim_cur, both.rlim_max, soft});
  if (::setrlimit(what, &both) != 0) ::_exit(kFailed);
}

[[noreturn]] void work_in_child(const std::function<std::string()>& work, const ProcessLimits& limits,
                                Bytes address_space, pid_t parent, int pipe) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(kFailed);
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, SIG_DFL);
  const auto seconds = static_cast<std::uint64_t>(limits.processor.count());
  limit(RLIMIT_CPU, seconds, seconds + 1);
  limit(RLIMIT_CORE, 0, 0);
  limit(RLIMIT_NOFILE, 0, 0);
  limit(RLIMIT_FSIZE, 0, 0);
  limit(RLIMIT_AS, static_cast<std::uint64_t>(address_space), static_cast<std::uint64_t>(address_space));
  try {
    const std::string answer = work();
    for (std::size_t at = 0; at < answer.size();) {
      const ssize_t written = ::write(pipe, answer.data() + at, answer.size() - at);
      if (written < 0 && errno != EINTR) ::_exit(kFailed);
      at += static_cast<std::size_t>(std::max<ssize_t>(written, 0));
    }
    ::_exit(0);
  } catch (const std::bad_alloc&) {
    ::_exit(kNoMemory);
  } catch (...) {
    ::_exit(kFailed);
  }
}

enum class Came { Whole, TooLate, TooMuch };

Came read_to_end(int pipe, const ProcessLimits& limits, std::string& answer) {
  std::array<char, 65536> piece;
  for (const TimePoint end = steady_clock().now() + limits.deadline;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - steady_clock().now()).count();
    pollfd polled{.fd = pipe, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&polled, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, INT_MAX)));
    if (ready == 0) return Came::TooLate;
    if (ready < 0 && errno == EINTR) continue;
    const ssize_t count = ::read(pipe, piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return Came::Whole;
    answer.append(piece.data(), static_cast<std::size_t>(count));
    if (static_cast<Bytes>(answer.size()) > limits.answer) return Came::TooMuch;
  }
}

std::string mib(Bytes bytes) {
  return std::to_string(bytes / kMiB) + " MiB";
}

/// Why there is no answer.
std::string fault_of(Came came, int status, const ProcessLimits& limits) {
  if (came == Came::TooLate)
    return "was not read within " + printed("%g s", Seconds(limits.deadline).count());
  if (came == Came::TooMuch) return "has more than " + mib(limits.answer) + " of names and shapes";
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU)
    return "takes more than " + std::to_string(limits.processor.count()) + " s of the processor to be read";
  if (WIFSIGNALED(status))
    return "ended the process that read it by signal " + std::to_string(WTERMSIG(status)) + " (" +
           ::strsignal(WTERMSIG(status)) + ")";
  if (WEXITSTATUS(status) == kNoMemory)
    return "needs more than " + mib(limits.memory) + " of memory to be read";
  return "ended the process that read it";
}

}  // namespace

Result<std::string> in_own_process(const std::function<std::string()>& work, const ProcessLimits& limits,
                                   const std::string& where) {
  const Bytes address_space = mapped_bytes() + limits.memory;
  std::array<int, 2> ends{-1, -1};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    return Problem{where, std::string("no pipe to its reader: ") + std::strerror(errno), {}};
  const pid_t parent = ::getpid(), child = ::fork();
  if (child == 0) work_in_child(work, limits, address_space, parent, ends[1]);
  const int error = errno;
  ::close(ends[1]);
  std::string answer;
  const Came came = child < 0 ? Came::Whole : read_to_end(ends[0], limits, answer);
  ::close(ends[0]);
  if (child < 0)
    return Problem{where, std::string("no process can be started to read it: ") + std::strerror(error), {}};
  ::kill(child, SIGKILL);  // one that has ended keeps its exit code
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (came == Came::Whole && WIFEXITED(status) && WEXITSTATUS(status) == 0) return answer;
  return Problem{where, fault_of(came, status, limits), kHarm};
}

}  // namespace millrace
