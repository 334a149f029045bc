// Finds the programs that compute. They stand beside this one, unless the environment says otherwise.
#pragma once

#include <string>

#include "runtime/device/compute_device.h"

namespace millrace {

/// Returns the path of this program; empty: the system does not say.
std::string own_program();

/// Returns the path of a program that stands beside this one. Needs not exist.
std::string program_beside(const std::string& name);

/// millrace-worker-cuda (or what MILLRACE_WORKER_CUDA names), or millrace-worker (MILLRACE_WORKER). Needs not
/// exist.
std::string worker_path(ComputeDevice device);

/// Returns what to do if the worker cannot be started.
std::string worker_hint(ComputeDevice device);

}  // namespace millrace
