// Log lines on stderr, one for each event: `[rank3 stage1] 2026-01-02T03:04:05.678Z INFO step=120 loss=2.31`.
#pragma once

#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>

namespace millrace {

enum class LogLevel { Info, Warning, Error };

/// Sets the prefix of all lines, for example "rank3 stage1"; empty: none. Must be called before threads
/// start.
void set_log_prefix(std::string prefix);

/// Sets the prefix of this thread's messages: "a: " for job a. Empty: none. It distinguishes jobs that share
/// a process. New threads do not inherit it.
void set_job_mark(std::string mark);
const std::string& job_mark();

/// Writes one line with one write(2). Options are named as set_option_names specifies; control characters
/// other than tabs become spaces. Thread-safe.
void log_line(LogLevel level, std::string_view message);

inline void log_info(std::string_view m) {
  log_line(LogLevel::Info, m);
}
inline void log_warning(std::string_view m) {
  log_line(LogLevel::Warning, m);
}
inline void log_error(std::string_view m) {
  log_line(LogLevel::Error, m);
}

/// Returns a bar for a terminal that shows `done` of `total`: "[######..................]".
std::string progress_bar(std::int64_t done, std::int64_t total);

}  // namespace millrace
