// Errors of a computation. Their messages name the computation, then quote LibTorch's text.
#pragma once

#include <string>

namespace millrace {

/// Rethrows the exception being handled as an Error; must be called in a catch block. The message starts with
/// `context`.
/// Errors keep their class and hint. A PeerError is rethrown unchanged, because its message names its own
/// action. Out of memory in LibTorch or the standard library becomes OutOfMemory. All other exceptions become
/// an Error with ExitCode::RunFailed.
[[noreturn]] void rethrow_with(const std::string& context);

/// Returns for example "out of memory: 1.2 GiB of tensors are live, 0.1 GiB kept for the next ones; the
/// process may have 3.0 GiB (ulimit -v)". `asked` is the size in bytes of the tensor that could not be
/// allocated; 0: unknown.
std::string out_of_memory_text(std::size_t asked = 0);
/// The hint of OutOfMemory.
extern const char* const kLessMemory;

}  // namespace millrace
