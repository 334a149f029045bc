// Reads a raw trace of any size once: filters, aligns, writes the kit's <trace>.out and hands the events on.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "experiments/io/trace/event_sorter.h"
#include "experiments/io/trace/process_groups.h"
#include "experiments/io/trace/raw_trace.h"
#include "runtime/base/result.h"

namespace millrace {

struct TraceBounds {
  std::int64_t boot_utc_ns = 0;  ///< added to a stamp gives nanoseconds since 1970
  std::int64_t from = 0;         ///< rows that end before (UTC) are left out: the run has not begun
  std::int64_t to = 0;           ///< rows after are damaged: nobody traces for so long
};

struct TraceCounts {
  std::int64_t rows = 0;  ///< data rows read
  std::int64_t kept = 0;  ///< written to <trace>.out
  Dropped dropped;
};

struct TraceReading {
  TraceKind kind = TraceKind::Read;
  TracedWorkload workload = TracedWorkload::Unet3d;
  TraceBounds window;
  std::filesystem::path raw;  ///< trace_read.out
  std::filesystem::path out;  ///< read.out
  int threads = 2;
  /// Called now and then from the calling thread with the bytes read since the last call.
  std::function<void(std::int64_t)> progress;
};

/// Rows are parsed by `threads` threads in pieces of a megabyte, and taken in the order of the file. Memory
/// does not depend on the file's size. `reads` gets what each process read (of a read trace), and which
/// have the name of a loader (of an openat trace). Problem:
/// the file cannot be read, has another layout, more than 5,000 damaged rows (or more than good ones), a
/// clock that goes back by more than a minute, or grew while it was read. Throws DataError when `out` cannot
/// be written.
Result<TraceCounts> read_trace(const TraceReading& reading, EventSorter& events, ReadActivities& reads);

}  // namespace millrace
