// LibTorch-free.
#pragma once

#include <atomic>

namespace millrace {

/// A flag that a signal handler or another thread sets, and that the trainer reads between steps.
using StopFlag = std::atomic<bool>;

}  // namespace millrace
