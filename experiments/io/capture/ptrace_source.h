// Sees the file calls of a command and of all that it starts, without root: seccomp stops just these calls,
// and ptrace(2) tells what they were and how long they took.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "experiments/io/capture/file_event.h"
#include "experiments/io/capture/traced_command.h"

namespace millrace {

/// A source tells these things while it traces. The calls come from the thread that traces.
struct CaptureSink {
  std::function<void(const FileEvent& event)> event;
  std::function<void(std::uint32_t process)> forget;  ///< it runs another program, or ended
  /// It has the files of its parent. Only sources that cannot ask the process itself say so.
  std::function<void(std::uint32_t parent, std::uint32_t child)> forked;
  std::function<void(std::uint32_t process)> started;  ///< the command itself has started
  std::function<void(int status)> ended;               ///< the command itself has ended: its wait status
};

struct TraceResult {
  int status = 0;       ///< of the command, as waitpid gives it
  int exec_error = 0;   ///< errno, if the command could not be started
  std::string refused;  ///< why nothing can be traced here; empty: it could
};

/// Runs the command and returns when the last traced process has ended. A latency is the time between the two
/// stops of a call, less `floor_ns`. Other children of the calling thread must not end meanwhile. If this
/// process is killed, the kernel kills the traced ones.
TraceResult trace_by_ptrace(const TracedCommand& command, std::int64_t floor_ns, const CaptureSink& sink);

/// Returns the nanoseconds that the two stops add to a call: the median of 500 calls that do nothing. 0:
/// unknown.
std::int64_t measure_ptrace_floor();

}  // namespace millrace
