#include "experiments/trace/progress_line.h"

#include <unistd.h>

#include <cstdio>

#include "runtime/base/log.h"

namespace millrace {

ProgressLine::ProgressLine(std::string what)
    : what_(std::move(what)), terminal_(::isatty(STDERR_FILENO) != 0) {}

void ProgressLine::show(std::int64_t done, std::int64_t total) {
  const auto now = std::chrono::steady_clock::now();
  if (!terminal_ || total <= 0 || now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  shown_ = true;
  std::fprintf(stderr, "\r\x1b[K%s %s %lld%%", what_.c_str(), progress_bar(done, total).c_str(),
               static_cast<long long>(100 * done / total));
}

void ProgressLine::clear() {
  if (shown_) std::fprintf(stderr, "\r\x1b[K");
  shown_ = false;
}

}  // namespace millrace
