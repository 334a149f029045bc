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

/// Returns a duration as people read it: "31s", "3m20s", "2h05m".
std::string short_duration(double seconds);

/// How often progress is shown on stderr: ten times a second on a terminal, every ten seconds elsewhere.
std::chrono::milliseconds progress_interval();

/// Returns the text of a line that is drawn again and again in the place of what stands there. A terminal
/// that is too narrow cuts it: a part on a second row would stay there.
std::string redrawn(const std::string& text);

/// Says that a command works where nothing can be counted: "reads the run: 12s". A thread of its own writes:
/// on a terminal every second from the first on, elsewhere every ten seconds. What it drew is removed when it
/// is destroyed. A child that is forked meanwhile may only start another program.
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
  std::mutex mutex_;  ///< of nothing: what the wait wants
  std::condition_variable_any wake_;
  std::jthread thread_;
};

/// Draws a bar with rate and time left on a terminal, and removes it when destroyed. Elsewhere it logs a
/// line every ten seconds. Not thread-safe.
class ProgressLine {
 public:
  /// `what` stands before the numbers and may be empty. `total` is the number of bytes for show_bytes(). With
  /// `first` a WorkingLine says that text until show() has something done.
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

/// Returns what `work` does, and says meanwhile that it goes on.
template <class Work>
auto while_working(std::string what, Work work) {
  const WorkingLine line(std::move(what));
  return work();
}

}  // namespace millrace
