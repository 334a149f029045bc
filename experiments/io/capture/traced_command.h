// The command that is traced, and its first moments as a process.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace millrace {

struct TracedCommand {
  /// The started process calls this; it must not return. Without it the process becomes `words`.
  std::function<void()> body;
  std::vector<std::string> words;
};

/// Becomes the command, in the child of a fork, when a byte comes on `go`. `prepare` is called before that.
/// Its result, if not 0, and the errno of a failed exec go to `failure`, and the process ends with 127.
[[noreturn]] void become(const TracedCommand& command, int go, int failure,
                         const std::function<int()>& prepare = {});

/// Lets signals come again in a child whose parent blocks them.
void unblock_signals();

}  // namespace millrace
