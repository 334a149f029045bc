// LibTorch-free.
#pragma once

#include <atomic>

namespace millrace {

/// Set from a signal handler or another thread; read between steps.
using StopFlag = std::atomic<bool>;

}  // namespace millrace
