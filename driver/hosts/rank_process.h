// One rank as a process of this host: started, signalled, and its end seen. No shell is involved.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "driver/hosts/descriptor.h"

namespace millrace {

/// One process to start.
struct RankProcess {
  int rank = 0;
  int stage = -1;                                                ///< for messages; -1: unknown
  std::vector<std::string> argv;                                 ///< argv[0] is the path of the program
  std::vector<std::pair<std::string, std::string>> environment;  ///< on top of the parent's own
  std::string log;  ///< LOG.out and LOG.err get the raw output; empty: no files
  int host = -1;    ///< position in LaunchOptions::hosts; -1: a process of this host
};

/// Blocks the signals that a supervisor of ranks reads through a descriptor; the destructor restores
/// everything. SIGHUP stays as it is if it is ignored (nohup).
class SignalGuard {
 public:
  /// Throws ConfigError.
  SignalGuard();
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;
  ~SignalGuard() { restore(); }
  int descriptor() const { return descriptor_.get(); }
  const sigset_t& old_mask() const { return old_mask_; }
  /// Returns the signals that have come, without SIGCHLD.
  std::vector<int> read() const;

 private:
  void restore();
  Descriptor descriptor_;
  sigset_t old_mask_{};
  struct sigaction old_child_ {};
  struct sigaction old_pipe_ {};
  struct sigaction old_size_ {};
};

/// A process with pipes at its outputs; the leader of its own session and process group.
struct ChildProcess {
  pid_t pid = -1;
  Descriptor in;                  ///< its stdin, if it was asked for; else /dev/null is its stdin
  Descriptor out;                 ///< its stdout; reads do not block
  Descriptor err;                 ///< its stderr; reads do not block
  Descriptor orders;              ///< a socket to it, if it was asked for; reads do not block
  std::vector<std::string> argv;  ///< it was started with
};

/// With Orders the process has the other end of ChildProcess::orders as the descriptor that kOrders names.
enum class ChildInput { None, Pipe, Orders };
inline constexpr const char* kOrders = "MILLRACE_ORDERS";

/// Names the seconds that had passed since the launcher's start when it started the rank, or gave it an
/// order. Ranks of other hosts need a duration, because their clocks may differ.
inline constexpr const char* kSpent = "MILLRACE_SPENT";

/// Starts a process with `environment` on top of this one's. `what` names it in messages ("rank 3"). Throws
/// ConfigError.
ChildProcess start_child(const std::string& what, const std::vector<std::string>& argv,
                         const std::vector<std::pair<std::string, std::string>>& environment,
                         const sigset_t& mask, ChildInput input = ChildInput::None);

/// How a process ended.
struct ChildEnd {
  int status = 0;         ///< of exit(); meaningless if `signal` is set
  int signal = 0;         ///< the signal that ended it, or 0
  std::string silence{};  ///< it was killed because it gave no sign of life: since when, and why
  bool is_kept = false;   ///< only its run ended: the process waits for the next one
};
/// Returns the end of the leader of process group `pid`, and kills what is left of its group; empty: it runs.
std::optional<ChildEnd> end_of(pid_t pid);

/// Tells whether a process is suspended by SIGSTOP or a debugger.
bool is_suspended(pid_t pid);

}  // namespace millrace
