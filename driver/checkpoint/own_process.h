// Runs work in a process of its own, with limits: what a damaged or hostile file does to its reader ends
// there. LibTorch-free.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace millrace {

struct ProcessLimits {
  Bytes memory = 768 * kMiB;  ///< more than this process has
  std::chrono::seconds processor{60};
  std::chrono::milliseconds deadline{300'000};  ///< by the clock
  Bytes answer = 256 * kMiB;
};

/// Returns what `work` returns in a forked process, which can open no file and write none. It dies with this
/// process. Problem, of `where`: it was ended by a signal, met a limit, or threw.
Result<std::string> in_own_process(const std::function<std::string()>& work, const ProcessLimits& limits,
                                   const std::string& where);

}  // namespace millrace
