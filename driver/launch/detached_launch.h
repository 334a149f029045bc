// A launch in the background: `millrace launch --detach`. LibTorch-free.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "driver/launch/job_spec.h"

namespace millrace {

/// Starts `command`, a launch of `job`, in a session of its own, which a closed terminal does not end. What
/// it prints goes to OUT/launch.out and OUT/launch.err. Returns 0 when all ranks have been started, or its
/// exit code if it ends before; then its messages are on stderr.
int launch_detached(const JobSpec& job, const std::vector<std::string>& command);

/// Returns what tells the process that has detached this one that the ranks have been started. It does
/// nothing in a launch that was not detached.
std::function<void()> started_teller();

}  // namespace millrace
