#include "runtime/base/progress_line.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/text.h"

namespace millrace {

ProgressLine::ProgressLine(Clock& clock, std::string what, Bytes total)
    : clock_(clock),
      what_(what.empty() ? "" : std::move(what) + ": "),
      start_(clock.now()),
      last_(start_),
      total_(total),
      terminal_(::isatty(STDERR_FILENO) != 0) {}

void ProgressLine::show(std::int64_t done, std::int64_t total, const std::string& unit) {
  if (!is_time()) return;
  draw(done, total,
       printed("%lld of %lld ", static_cast<long long>(done), static_cast<long long>(total)) + unit);
}

void ProgressLine::show_bytes(Bytes done) {
  if (!is_time()) return;
  const double megabytes = static_cast<double>(done) / 1e6;
  draw(done, total_,
       printed("%.1f of %.1f MB, %.0f MB/s", megabytes, static_cast<double>(total_) / 1e6,
               megabytes / Seconds(last_ - start_).count()));
}

void ProgressLine::clear() {
  if (std::exchange(drawn_, false)) std::fputs("\r\x1b[K", stderr);
}

bool ProgressLine::is_time() {
  const TimePoint now = clock_.now();
  if (now - last_ < (terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(10'000)))
    return false;
  last_ = now;
  return true;
}

void ProgressLine::draw(std::int64_t done, std::int64_t total, std::string text) {
  if (done > 0 && done < total) {
    const double left =
        Seconds(last_ - start_).count() * static_cast<double>(total - done) / static_cast<double>(done);
    text += printed(", %.0f s left", left);
  }
  if (!terminal_) return log_info(what_ + text);
  drawn_ = true;
  std::fprintf(stderr, "\r\x1b[K%s%s %s", what_.c_str(), progress_bar(std::min(done, total), total).c_str(),
               text.c_str());
  std::fflush(stderr);
}

}  // namespace millrace
