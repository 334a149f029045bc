// The times of all actions: spans in a preallocated ring per rank, written as Chrome trace JSON.
#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/files.h"
#include "runtime/base/ids.h"
#include "runtime/base/result.h"

namespace millrace {

enum class SpanKind : std::uint8_t {
  Forward,
  Backward,
  BackwardInput,
  BackwardWeight,
  Send,
  Recv,
  Wait,
  Reduce,
  Update,
  Data,
  Checkpoint,
  Eval,
  Step,
  // Only in runs that record every phase:
  Load,        ///< a thread of the loader reads files; `peer` is its number, -1: the rank's own thread
  Preprocess,  ///< ... and makes the batch from them
  Copy,        ///< a batch is copied to the device
  Loss         ///< a part of a forward
};
const char* to_string(SpanKind kind);
/// Returns whether a span is computation of a microbatch: forward, backward, or a part of the backward.
bool is_computation(SpanKind kind);
bool is_communication(SpanKind kind);

/// 40 bytes, no allocation. `start`/`end` in nanoseconds of the rank's clock since the trace's origin.
struct Span {
  SpanKind kind = SpanKind::Step;
  std::int16_t stage = -1;
  std::int32_t peer = -1;
  std::int64_t microbatch = -1;
  std::int64_t step = -1;
  std::int64_t start = 0;
  std::int64_t end = 0;
};

/// Keeps the last `capacity` spans. One writer; readers must wait until it is idle. `record` never allocates.
class SpanRing {
 public:
  explicit SpanRing(std::size_t capacity = 1 << 16);
  void record(const Span& span);
  std::vector<Span> spans() const;  ///< oldest first
  /// Returns the newest spans, back to the last span of a step before `step`; oldest first. The time is
  /// linear in their number.
  std::vector<Span> spans_from(std::int64_t step) const;
  std::uint64_t recorded() const { return next_; }

 private:
  std::vector<Span> ring_;
  std::uint64_t next_ = 0;
};

/// Spans of several threads. Thread-safe.
class SpanList {
 public:
  void record(const Span& span) {
    const std::lock_guard lock(mutex_);
    spans_.push_back(span);
  }
  /// Returns the spans added since the previous call.
  std::vector<Span> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(spans_, {});
  }

 private:
  std::mutex mutex_;  // guards spans_
  std::vector<Span> spans_;
};

/// Returns Chrome/Perfetto JSON (`traceEvents`, ph X, ts/dur in microseconds, pid = rank, one track for
/// compute and one for communication), with process names. Spans of one track do not overlap.
std::string to_chrome_trace(const std::vector<std::vector<Span>>& spans_by_rank);
/// Converts one rank's spans to JSON (array of objects) and back, so that ranks can pass them to the report.
std::string spans_to_json(const std::vector<Span>& spans);
Result<std::vector<Span>> spans_from_json(std::string_view text, const std::string& name);

/// Writes spans_to_json() of a growing list, so that its spans need not stay in memory. The file is named
/// `path`.part until finish(). Not thread-safe.
class SpanFile {
 public:
  /// Throws ConfigError if the file cannot be created.
  explicit SpanFile(const std::filesystem::path& path);
  /// Returns an error if the write fails; all of these spans are then lost.
  Status add(const std::vector<Span>& spans);
  /// Ends the list, and renames the file to its final name.
  Status finish();

 private:
  std::filesystem::path path_, part_;
  LineFile file_;
  bool any_ = false;
};

}  // namespace millrace
