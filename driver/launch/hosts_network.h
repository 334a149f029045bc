// `millrace profile --network --job JOB.yaml`: measures the links between the hosts of a job, with ranks
// placed as `millrace launch` would place them. LibTorch-free.
#pragma once

#include <string>
#include <vector>

#include "driver/flags/compute_specs.h"

namespace millrace {

/// Starts the measuring ranks on the job's hosts and writes the cluster file to --out. Logs and parts are in
/// OUTPUT_DIR/network of the job. Returns 0; 2 for what cannot start; the first failing rank's code.
int profile_network_of_job(const ProfileFlags& flags, const std::vector<std::string>& args);

}  // namespace millrace
