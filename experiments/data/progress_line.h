// What the data commands share: the bar and the number of threads.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "driver/cli/cli.h"
#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"

namespace millrace {

inline Flag threads_flag(std::optional<int>& threads) {
  return {.name = "threads",
          .short_name = 'j',
          .value = "N",
          .help = "Threads (default: all cores).",
          .target = into::integer(threads, 1, 1024)};
}

inline int thread_count(std::optional<int> threads) {
  return threads.value_or(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
}

/// A bar on a terminal, at most ten times a second; a line every ten seconds elsewhere.
class ProgressLine {
 public:
  ProgressLine(Clock& clock, Bytes total)
      : clock_(clock), start_(clock.now()), last_(start_), total_(total), terminal_(::isatty(2) != 0) {}
  ~ProgressLine() {
    if (terminal_ && drawn_) std::fputs("\r\x1b[K", stderr);
  }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  void operator()(Bytes done) {
    if (!is_time()) return;
    const double seconds = Seconds(last_ - start_).count();
    show(done, total_,
         printed("%.1f of %.1f MB, %.0f MB/s", static_cast<double>(done) / 1e6,
                 static_cast<double>(total_) / 1e6, static_cast<double>(done) / 1e6 / seconds));
  }
  /// Of something that is not counted in bytes.
  void operator()(std::int64_t done, std::int64_t total, const char* of_what) {
    if (is_time())
      show(done, total,
           printed("%lld of %lld %s", static_cast<long long>(done), static_cast<long long>(total), of_what));
  }

 private:
  bool is_time() {
    const TimePoint now = clock_.now();
    if (now - last_ < (terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(10'000)))
      return false;
    last_ = now;
    return true;
  }
  void show(std::int64_t done, std::int64_t total, const std::string& text) {
    if (!terminal_) return log_info(text);
    drawn_ = true;
    std::fprintf(stderr, "\r\x1b[K%s %s", progress_bar(std::min(done, total), total).c_str(), text.c_str());
    std::fflush(stderr);
  }

  Clock& clock_;
  TimePoint start_, last_;
  Bytes total_;
  bool terminal_, drawn_ = false;
};

}  // namespace millrace
