#include "runtime/base/log.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <string>

#include "runtime/base/option_names.h"

namespace millrace {
namespace {

// Set once by main before threads start.
std::string prefix_text;
thread_local std::string mark_of_thread;

const char* name_of(LogLevel level) {
  switch (level) {
    case LogLevel::Info:
      return "INFO";
    case LogLevel::Warning:
      return "WARNING";
    case LogLevel::Error:
      return "ERROR";
  }
  return "";
}

std::string wall_time() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  char text[40];
  const std::size_t n = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  std::snprintf(text + n, sizeof text - n, ".%03dZ", static_cast<int>(ms));
  return text;
}

}  // namespace

void set_log_prefix(std::string prefix) {
  prefix_text = std::move(prefix);
}
void set_job_mark(std::string mark) {
  mark_of_thread = std::move(mark);
}
const std::string& job_mark() {
  return mark_of_thread;
}

void log_line(LogLevel level, std::string_view message) {
  static const bool terminal = ::isatty(STDERR_FILENO) != 0;
  std::string line = terminal ? "\r\x1b[K" : "";  // a bar may stand there
  if (!prefix_text.empty()) line += "[" + prefix_text + "] ";
  line += wall_time() + " " + name_of(level) + " ";
  for (char c : with_option_names(mark_of_thread + std::string(message)))
    line += static_cast<unsigned char>(c) < 0x20 && c != '\t' ? ' ' : c;
  line += '\n';
  [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, line.data(), line.size());
}

std::string progress_bar(std::int64_t done, std::int64_t total) {
  constexpr std::int64_t kWidth = 24;
  const std::int64_t full =
      std::clamp<std::int64_t>(kWidth * done / std::max<std::int64_t>(1, total), 0, kWidth);
  return "[" + std::string(static_cast<std::size_t>(full), '#') +
         std::string(static_cast<std::size_t>(kWidth - full), '.') + "]";
}

}  // namespace millrace
