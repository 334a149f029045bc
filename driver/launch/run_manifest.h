// What went into a launch, for whoever wants the same run again: OUT/launch-manifest.json. LibTorch-free.
#pragma once

#include <string>
#include <vector>

#include "driver/launch/job_spec.h"
#include "runtime/base/json.h"

namespace millrace {

/// The manifest's name in the output folder.
inline constexpr const char* kRunManifest = "launch-manifest.json";

/// Returns where and when something is run: {millrace, date, host, processor, git}.
Json run_facts();

/// Returns the manifest: millrace's version, the command as it was typed, the seed, the hosts, the time, this
/// host and its processor, the git state of the current folder, and a hash (XXH3-128) of each input file. A
/// file above 64 MiB and a folder have none. The job itself is OUT/job.yaml.
Json run_manifest(const JobSpec& job, const std::string& run, const std::string& command);

}  // namespace millrace
