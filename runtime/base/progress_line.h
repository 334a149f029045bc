// The progress of a command on stderr: a bar on a terminal, lines elsewhere.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/units.h"

namespace millrace {

/// Draws a bar on a terminal at most ten times a second, and removes it when destroyed. Elsewhere it logs a
/// line every ten seconds. Not thread-safe.
class ProgressLine {
 public:
  /// `what` stands before the numbers and may be empty. `total` is the number of bytes for show_bytes().
  explicit ProgressLine(Clock& clock, std::string what = "", Bytes total = 0);
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// Shows "profile: 12 of 90 passes, 31 s left".
  void show(std::int64_t done, std::int64_t total, const std::string& unit);
  /// Shows "1.5 of 9.0 MB, 80 MB/s, 1 s left".
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
};

}  // namespace millrace
