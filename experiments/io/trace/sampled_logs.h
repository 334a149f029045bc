// Reads the files that samplers wrote once a second beside the traces: nvidia-smi pmon, mpstat, iostat.
// Their clocks are local.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/io/trace/lines.h"
#include "experiments/io/trace/time_zone.h"
#include "runtime/base/result.h"

namespace millrace {

/// A moment on a wall clock: seconds since 1970 as if it were UTC.
using LocalSecond = std::int64_t;

/// The day on which a time of day lies within 12 hours of `near`.
LocalSecond nearest_local(std::int64_t time_of_day, LocalSecond near);

struct GpuSample {
  LocalSecond local = 0;
  int gpu = 0;
  std::uint32_t pid = 0;
  char type = 'C';  ///< C computes, G draws
  int sm = 0, memory = 0, encoder = 0, decoder = 0, framebuffer_mb = 0;
  std::string command;
};

struct GpuLog {
  std::vector<GpuSample> samples;   ///< rows with a process, in the order of the file, each once
  LocalSecond first = 0, last = 0;  ///< of all rows
  std::int64_t rows = 0;
  Dropped dropped;
};

/// nvidia-smi pmon -s um -o DT. Columns are found by the `#` header's names. Problem: no header or rows,
/// columns missing, or more damaged rows than good ones.
Result<GpuLog> read_pmon(std::string_view text, const std::string& name);

/// PIDs that compute: of two on one GPU at the same time, one that reads (`reads`) comes first, then the
/// earlier row.
struct GpuProcesses {
  std::set<std::uint32_t> kept;
  std::set<std::uint32_t> ignored;
};
GpuProcesses gpu_processes(const GpuLog& log, const std::set<std::uint32_t>& reads);

struct CpuSample {
  LocalSecond local = 0;
  std::vector<std::string> values;  ///< text of kCpuColumns, as written
};
inline constexpr const char* kCpuColumns[] = {"%usr",  "%nice",  "%sys",   "%iowait", "%irq",
                                              "%soft", "%steal", "%guest", "%gnice",  "%idle"};
struct CpuLog {
  std::vector<CpuSample> samples;
  Dropped dropped;
};

/// mpstat 1, 12 h or 24 h clock; rows of all CPUs together. `near`: a moment of the run on the same clock,
/// for the date.
Result<CpuLog> read_mpstat(std::string_view text, LocalSecond near, const std::string& name);

struct DiskLog {
  std::vector<std::string> columns;  ///< disk_device, r/s, ...: the keys of the first disk
  struct Row {
    LocalSecond local;
    std::vector<std::string> values;  ///< by column; "" where this disk has no such key
  };
  std::vector<Row> rows;
  Dropped dropped;
};

/// iostat -o JSON. A file that was cut off gives the samples that are whole.
Result<DiskLog> read_iostat(std::string_view text, const std::string& name);

/// The kit's files. Rows before `from` (nanoseconds UTC) are left out and counted in `dropped`.
std::string gpu_out(const GpuLog& log, const GpuProcesses& processes, const TimeZone& zone, std::int64_t from,
                    Dropped& dropped);
std::string gpu_csv(const GpuLog& log, const GpuProcesses& processes, const TimeZone& zone,
                    std::int64_t from);
std::string cpu_out(const CpuLog& log, const TimeZone& zone, std::int64_t from, Dropped& dropped);
std::string cpu_csv(const CpuLog& log, const TimeZone& zone, std::int64_t from);
std::string iostat_csv(const DiskLog& log, const TimeZone& zone);

/// A number as Python prints it: 2.0, 770.5, 1e-05.
std::string python_number(double value);

}  // namespace millrace
