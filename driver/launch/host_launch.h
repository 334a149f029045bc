// A job whose ranks run on several hosts: the agents to start, what each is told, and what comes back.
// LibTorch-free.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "driver/hosts/host_connection.h"
#include "driver/launch/job_spec.h"
#include "driver/launch/launcher.h"

namespace millrace {

/// Puts the ranks of `job` on its hosts, with the environment that torchrun gives but for where they meet:
/// that is known when the hosts have been reached. A process with another `token` cannot join them.
std::vector<RankProcess> host_processes(const JobSpec& job, std::vector<RankProcess> processes,
                                        const std::string& token);

/// Returns the newest whole checkpoint that a job with hosts goes on from; nothing: it begins, or its ranks
/// find it themselves (jobs in rounds). Throws CheckpointError: there is none that is whole.
std::optional<ResumedCheckpoint> resumed_checkpoint(const JobSpec& job);

/// Settles `resume: auto` of a job with hosts: only the launcher's folder says whether there is a checkpoint.
/// Problem: the folder holds a run that is done.
Status settle_resume(JobSpec& job);

/// Returns the ranks of each host.
std::vector<std::vector<int>> ranks_of_each_host(const JobSpec& job);

/// Connections that only ask what hosts hold of an earlier run (AgentJob::only_asks).
struct HostsToAsk {
  std::vector<std::unique_ptr<HostConnection>> connections;
  std::chrono::milliseconds deadline{};
  std::filesystem::path probe;  ///< the file by which hosts see whether they share the launcher's folder
};
/// Makes those of a job, with the probe. Problem: as host_options().
Result<HostsToAsk> hosts_to_ask(const JobSpec& job, Survivors& reached);

/// Makes the options of run_ranks() for a job with hosts, and puts a file into the output folder by which
/// hosts see whether they share it. Problem: a path of the program that a login shell may not be given, or a
/// first host that other hosts cannot reach by its name. Takes the connections of `reached` that fit, and
/// ends the others. With `keeps_ranks` processes may outlive the run.
Result<LaunchOptions> host_options(const JobSpec& job, const std::vector<RankProcess>& processes,
                                   Survivors& reached, bool keeps_ranks = false);

}  // namespace millrace
