// The number of files, sockets included, that this process may have open (RLIMIT_NOFILE).
#pragma once

#include <cstddef>
#include <string>

namespace millrace {

/// Raises the soft limit of open files to the hard limit, which needs no privileges. Thread-safe.
void raise_open_files() noexcept;

/// Raises the limit if `needed` exceeds it. Throws ConfigError if the hard limit is too low; the message
/// names `who` opens the files, such as "the launcher of 8 ranks".
void require_open_files(std::size_t needed, const std::string& who);

/// Throws ConfigError with the limit, after the system refused `what`, such as "rank 3: a connection with
/// rank 5".
[[noreturn]] void throw_no_open_files(const std::string& what);

}  // namespace millrace
