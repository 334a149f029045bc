// `millrace profile` of several ranks as the user types it, --network or a model under load: starts them on
// this host. Each of them is a worker that measures (driver/worker/profile_network.h, profile_command.cpp).
// LibTorch-free.
#pragma once

#include <string>
#include <vector>

#include "driver/flags/compute_specs.h"
#include "runtime/plan/cluster_spec.h"

namespace millrace {

/// The network that --network asks to measure.
struct NetworkJob {
  ClusterSpec cluster;
  std::string out;  ///< cluster file to write; empty: none
  ComputeDevice device = ComputeDevice::Cpu;
  Backend backend = Backend::Auto;
  bool encrypt = false;
  int round_trips = 0;
  Bytes largest = 0;
  double tolerance = 0;
  std::chrono::milliseconds deadline{};
  int threads = 1;
  bool json = false;
};
Result<NetworkJob> network_job(const ProfileFlags& flags, const Arguments& arguments);

/// Whether `job.out` can be written, before anything is measured.
Problems check_output(const NetworkJob& job);

/// How many ranks compute at once while a model is measured: --ranks, or the devices of the largest host of
/// --cluster; else 1.
Result<int> ranks_at_once(const ProfileFlags& flags);

/// True if these are arguments of `profile` for several ranks (--network, or a model under the load of a run)
/// and this process is no rank of a job: the caller must start them.
bool starts_profile_ranks(const std::vector<std::string>& args);

/// Problems for flags of the network that are given without --network.
Problems network_flags_without_network(const Arguments& arguments);

/// Starts the ranks and ends all when one fails. 0; 2 for what cannot start; the first failing rank's code.
/// `own`: the program that they run; empty: millrace's, for the device.
int launch_profile(const std::vector<std::string>& args, const std::string& own = {});

}  // namespace millrace
