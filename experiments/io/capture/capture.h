// Traces a command as the I/O kit does: its calls to files, with CPU, disks, GPUs and memory sampled beside
// it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/choices.h"
#include "runtime/base/json.h"
#include "runtime/base/result.h"

namespace millrace {

enum class CaptureMethod {
  Auto,      ///< bpftrace where it works, else ptrace
  Ptrace,    ///< needs no root
  Bpftrace,  ///< needs root; sees the block layer too
};
constexpr auto names_of(CaptureMethod) {
  return std::to_array<std::string_view>({"auto", "ptrace", "bpftrace"});
}

struct CaptureOptions {
  std::string folder;  ///< gets the files; a folder with a trace in it is refused
  CaptureMethod method = CaptureMethod::Auto;
  std::vector<std::string> command;
};

struct CaptureReport {
  std::string method;
  std::string why_not_bpftrace;                  ///< where `auto` took ptrace
  int exit_code = 0;                             ///< of the command; 128 + n if signal n ended it
  double seconds = 0;                            ///< of the command
  std::int64_t utc_offset_s = 0;                 ///< of this machine's clock
  std::int64_t latency_floor_ns = 0;             ///< what ptrace adds to a call, already taken away
  std::map<std::string, std::int64_t> rows;      ///< by file
  std::map<std::string, std::int64_t> left_out;  ///< what is not in the files, and how often
  std::int64_t lost = 0;                         ///< rows that the disk or bpftrace lost
  std::int64_t bytes_read = 0, bytes_written = 0;
  std::int64_t processes = 0, samples = 0;
  bool gpu = false;
  std::vector<std::string> notes;

  Json json(const std::vector<std::string>& command) const;
};

/// Runs the command, with this process's terminal, input and output, and returns when all that it started has
/// ended. SIGTERM and SIGHUP go on to the command; a second signal kills it. Writes the kit's raw files,
/// capture.log (the phases) and capture.json into the folder. What was traced is readable at any time, also
/// if this process is killed. Problem: no folder can be made, the command cannot be started, nothing can be
/// traced.
Result<CaptureReport> capture(const CaptureOptions& options);

}  // namespace millrace
