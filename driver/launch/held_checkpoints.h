// Checkpoints and logs that hosts with disks of their own still hold after the launcher was killed.
// LibTorch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "driver/launch/job_spec.h"
#include "driver/launch/launcher.h"

namespace millrace {

/// Returns the manifests of the checkpoints of `run` after step `after` whose shards are on the hosts
/// together, the newest first. `hosts`: what each of them holds.
std::vector<std::string> whole_checkpoints(const std::vector<std::vector<HeldCheckpoint>>& hosts,
                                           const std::string& run, std::int64_t after);

/// Returns the run that the logs in an output folder are of, else its checkpoints; empty: neither says so.
std::string run_in(const std::filesystem::path& output_dir);

/// Before a job with hosts goes on in its own folder: asks the hosts what they hold of its run, and gathers
/// their newest whole checkpoint and best one, if they are newer than the launcher's, and the lines that the
/// launcher's logs lack. Leaves the connections in `reached`. Returns the signal that ended it, or 0. The
/// caller holds the folder's lock. Problem: as host_options(). Throws UnreadyHosts.
Result<int> gather_held(const JobSpec& job, Survivors& reached, const SignalGuard& signals, Clock& clock);

}  // namespace millrace
