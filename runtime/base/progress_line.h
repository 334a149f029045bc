// The progress of a command on stderr: a bar on a terminal, lines elsewhere.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/units.h"

namespace millrace {

/// Returns a duration in short form: "31s", "3m20s", "2h05m".
std::string short_duration(double seconds);

/// Returns the interval between progress updates on stderr: 0.1 s on a terminal, 10 s elsewhere.
std::chrono::milliseconds progress_interval();

/// Returns the text that redraws a terminal line in place. The text is cut to the terminal's width, because a
/// part on a second row would remain.
std::string redrawn(const std::string& text);

/// Shows that a command is working when there is nothing to count: "reads the run: 12s". Its own thread
/// writes every second on a terminal, from the first second on, and every ten seconds elsewhere. The
/// destructor removes the text. A child forked meanwhile may only call exec.
class WorkingLine {
 public:
  explicit WorkingLine(std::string what);
  ~WorkingLine();
  WorkingLine(const WorkingLine&) = delete;
  WorkingLine& operator=(const WorkingLine&) = delete;

 private:
  void write(std::stop_token stop);

  std::string what_;
  bool terminal_;
  std::mutex mutex_;  ///< guards nothing: the wait requires a mutex
  std::condition_variable_any wake_;
  std::jthread thread_;
};

/// Draws a bar with the rate and the remaining time on a terminal, and removes it when destroyed. Elsewhere
/// it logs a line every ten seconds. Not thread-safe.
class ProgressLine {
 public:
  /// `what` precedes the numbers and may be empty. `total` is the number of bytes for show_bytes(). A
  /// non-empty `first` is shown by a WorkingLine until show() reports progress.
  explicit ProgressLine(Clock& clock, std::string what = "", Bytes total = 0, std::string first = "");
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// Shows "profile: 12 of 90 passes, 2.5/s, 31s left".
  void show(std::int64_t done, std::int64_t total, const std::string& unit);
  /// Shows "1.5 of 9.0 MB, 80 MB/s, 1s left".
  void show_bytes(Bytes done);
  /// Removes the bar.
  void clear();

 private:
  bool is_time();
  void draw(std::int64_t done, std::int64_t total, std::string text);

  Clock& clock_;
  std::string what_;
  TimePoint start_, last_;
  Bytes total_;
  bool terminal_, drawn_ = false;
  std::optional<WorkingLine> first_;
};

/// Returns the result of `work`, and shows a WorkingLine meanwhile.
template <class Work>
auto while_working(std::string what, Work work) {
  const WorkingLine line(std::move(what));
  return work();
}

}  // namespace millrace
