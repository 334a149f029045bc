// Asks another program: runs it to its end and takes what it printed. No shell is involved.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace millrace {

/// Returns the stdout of a program, which is looked for in PATH. Problem: it cannot be started, runs longer
/// than `deadline`, is suspended for 2 s, prints more than 4 MiB, or ends with another exit code than 0; then
/// its last words on stderr say why.
Result<std::string> answer_of(const std::vector<std::string>& argv, std::chrono::milliseconds deadline);

}  // namespace millrace
