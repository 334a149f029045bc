// The tracer's rows (bpftrace programs for block I/O, openat, read, write) and the clock they are on.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/io/trace/app_log.h"
#include "experiments/io/trace/lines.h"
#include "runtime/base/result.h"

namespace millrace {

enum class TraceKind { Bio, Openat, Read, Write };
/// trace_<name>.out is the raw file, <name>.out the aligned one.
inline constexpr std::array<const char*, 4> kTraceNames{"bio", "openat", "read", "write"};

/// The kind of an event of the timeline, in the order of their names.
enum class EventType : std::uint8_t { BioRead, BioWrite, Openat, Read, Write };
inline constexpr std::array<const char*, 5> kEventNames{"BIOR", "BIOW", "OPENAT", "READ", "WRITE"};

/// One row. The views are into the line.
struct RawRow {
  std::int64_t ns = 0;  ///< since boot, at the end of the call
  std::uint32_t pid = 0;
  std::int64_t latency_ns = 0;
  std::uint64_t bytes = 0;  ///< read, write and bio
  EventType type = EventType::Read;
  std::string_view process;  ///< bio and openat: the command's name
  std::string_view disk;     ///< bio
  std::string_view file;     ///< the file's name; empty where it has none
  std::string_view columns;  ///< everything behind the stamp, as written
};

/// Fills `row` from a line of the kind's layout; false: another number of columns, or one that is no number.
bool parse_row(std::string_view line, TraceKind kind, RawRow& row);

/// Whether the kit's filters keep a row for a workload; else why not (a constant text).
const char* why_filtered(const RawRow& row, TraceKind kind, TracedWorkload workload);

/// Rows that are no data: bpftrace's greeting, headers, blank lines. A header that names other columns than
/// the layout's is a Problem.
bool is_data(std::string_view line);
std::optional<Problem> wrong_header(std::string_view line, TraceKind kind, const std::string& name);

/// Appends the columns with one blank between them.
void append_columns(std::string& to, std::string_view columns);

/// trace_time_align.out: (ns since boot, local time of day) of many moments. The reference is the change of
/// second with the least time between its two rows; the middle of them is the second.
struct TimeReference {
  std::int64_t ns = 0;             ///< since boot
  std::int64_t second_of_day = 0;  ///< local
  std::int64_t gap_ns = 0;         ///< between the two rows: twice the uncertainty
  std::int64_t rows = 0;
  Dropped dropped;
};
Result<TimeReference> read_time_align(std::string_view text, const std::string& name);

/// File names of a data set have one pattern: "case_00034_x.npy" and "case_00117_x.npy" hash the same.
std::uint64_t name_pattern(std::string_view file);
/// Whether the name is one of the workload's data files, as it or the kit's generator names them.
bool is_dataset_file(std::string_view file, TracedWorkload workload);

}  // namespace millrace
