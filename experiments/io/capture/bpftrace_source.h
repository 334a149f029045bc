// Sees the file calls of a command in the kernel, as root, by bpftrace: cheaper for each call than ptrace,
// and with the requests that reach a disk.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "experiments/io/capture/ptrace_source.h"

namespace millrace {

struct BpftraceResult {
  TraceResult trace;
  std::int64_t lost = 0;  ///< events that bpftrace says it lost
};

/// Why bpftrace cannot trace here; empty: it can. Runs a program of one probe, which takes about a second.
std::string why_no_bpftrace();

/// Runs the command under a bpftrace program and returns when all that it started has ended. `bio` gets rows
/// of the block layer as the kit writes them. A relative path of a process that ended before its event was
/// read stays relative.
BpftraceResult trace_by_bpftrace(const TracedCommand& command, const CaptureSink& sink,
                                 const std::function<void(std::string_view row)>& bio);

/// The program, for a process and for this one, whose opens of /dev/null say that all probes are there.
std::string bpftrace_program(int process, int self);

}  // namespace millrace
