// Where the programs that compute are: beside this one, unless the environment says otherwise.
#pragma once

#include <string>

namespace millrace {

/// `device` as --device takes it: "cuda" names millrace-worker-cuda (or MILLRACE_WORKER_CUDA), anything else
/// millrace-worker (or MILLRACE_WORKER). Needs not exist.
std::string worker_path(const std::string& device);

/// What to do if it cannot be started.
std::string worker_hint(const std::string& device);

}  // namespace millrace
