// Failures of a computation, with what was being computed in front of what LibTorch says.
#pragma once

#include <string>

namespace millrace {

/// In a catch block: throws the exception that is being handled again as an Error. Its message begins with
/// `context`. Errors keep their class and hint, except that a PeerError is thrown as it is: its message names
/// its own action. LibTorch's and the standard library's out of memory become OutOfMemory; everything else
/// becomes an Error of ExitCode::RunFailed.
[[noreturn]] void rethrow_with(const std::string& context);

/// "out of memory: 1.2 GiB of tensors are live, 0.1 GiB kept for the next ones; the process may have 3.0 GiB
/// (ulimit -v)". `asked`: bytes of the tensor that found no room, 0: unknown.
std::string out_of_memory_text(std::size_t asked = 0);
/// The hint of OutOfMemory.
extern const char* const kLessMemory;

}  // namespace millrace
