// Errors of a computation. Their messages say what was being computed before LibTorch's text.
#pragma once

#include <string>

namespace millrace {

/// Throws the exception that is being handled again as an Error; to be called in a catch block. Its message
/// begins with `context`.
/// Errors keep their class and hint, except that a PeerError is thrown as it is: its message names its own
/// action. Out of memory in LibTorch or the standard library becomes OutOfMemory. Everything else becomes an
/// Error of ExitCode::RunFailed.
[[noreturn]] void rethrow_with(const std::string& context);

/// Returns for example "out of memory: 1.2 GiB of tensors are live, 0.1 GiB kept for the next ones; the
/// process may have 3.0 GiB (ulimit -v)". `asked` is the size in bytes of the tensor that found no room; 0:
/// unknown.
std::string out_of_memory_text(std::size_t asked = 0);
/// The hint of OutOfMemory.
extern const char* const kLessMemory;

}  // namespace millrace
