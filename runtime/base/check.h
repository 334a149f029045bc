// Checks that find millrace's own bugs. MILLRACE_CHECK stays on in release builds.
#pragma once

#include <sstream>
#include <string>

namespace millrace {

/// Throws InternalError (error.h) with the condition's text, the detail, the file and the line.
[[noreturn]] void fail_check(const char* text, const std::string& detail, const char* file, int line);

}  // namespace millrace

/// Throws InternalError if the condition is false: MILLRACE_CHECK(condition) or MILLRACE_CHECK(condition,
/// "detail " << value).
#define MILLRACE_CHECK(condition, ...)                                                \
  do {                                                                                \
    if (!(condition)) [[unlikely]] {                                                  \
      std::ostringstream millrace_detail_;                                            \
      __VA_OPT__(millrace_detail_ << __VA_ARGS__;)                                    \
      ::millrace::fail_check(#condition, millrace_detail_.str(), __FILE__, __LINE__); \
    }                                                                                 \
  } while (false)
