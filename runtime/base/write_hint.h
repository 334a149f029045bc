// The hint for a failed write.
#pragma once

#include <cerrno>
#include <string>

namespace millrace {

/// Returns the hint for the errno of a failed write.
inline std::string write_hint(int error, const char* usual = "is the disk full?") {
  return error == EFBIG ? "files may not be larger here: see `ulimit -f`, and the file system's limit"
                        : usual;
}

}  // namespace millrace
